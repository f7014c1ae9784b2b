#!/usr/bin/env python3
"""Makes the records of question answering: `cerebras-tf prepare squad` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "squad")
