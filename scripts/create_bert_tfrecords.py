#!/usr/bin/env python3
"""Makes the records of BERT pre-training: `cerebras-tf prepare bert` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "bert")
