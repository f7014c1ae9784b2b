#!/usr/bin/env python3
"""Makes the records of token classification: `cerebras-tf prepare ner` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "ner")
