#!/usr/bin/env python3
"""Converts checkpoints and compares them: `cerebras-tf convert` here."""

if __name__ == "__main__":
    import launch

    launch.run("convert")
