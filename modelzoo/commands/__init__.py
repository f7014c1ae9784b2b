"""The commands of the `cerebras-tf` program: each reads its arguments and has the work done."""
