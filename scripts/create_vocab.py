#!/usr/bin/env python3
"""Trains a vocabulary: `cerebras-tf prepare vocab` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "vocab")
