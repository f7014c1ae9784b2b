"""The machine: what a CS-2 is, and what it would do with a model. It touches no tensors."""
