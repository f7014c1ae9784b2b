#!/usr/bin/env python3
"""Makes the records of summarization: `cerebras-tf prepare summarization` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "summarization")
