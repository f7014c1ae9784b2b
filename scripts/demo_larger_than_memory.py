#!/usr/bin/env python3
"""Shows training of models larger than memory: `cerebras-tf larger_than_memory` here."""

if __name__ == "__main__":
    import launch

    launch.run("larger_than_memory")
