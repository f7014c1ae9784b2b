#!/usr/bin/env python3
"""Makes the records of the encoder-decoder: `cerebras-tf prepare translation` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "translation")
