#!/usr/bin/env python3
"""Measures training on the wafer and the host: `cerebras-tf bench` here."""

if __name__ == "__main__":
    import launch

    launch.run("bench")
