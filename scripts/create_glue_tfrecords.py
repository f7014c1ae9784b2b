#!/usr/bin/env python3
"""Makes the records of sentence classification: `cerebras-tf prepare glue` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "glue")
