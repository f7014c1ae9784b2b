#!/usr/bin/env python3
"""Scores a language model on tasks it was not trained on: `cerebras-tf zero_shot` here."""

if __name__ == "__main__":
    import launch

    launch.run("zero_shot")
