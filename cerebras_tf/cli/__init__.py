"""Command lines: arguments, exit codes and the `cerebras-tf` program. Holds no training logic."""
