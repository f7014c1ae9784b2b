#!/usr/bin/env python3
"""Makes the records of extractive summarization: `cerebras-tf prepare bertsum` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "bertsum")
