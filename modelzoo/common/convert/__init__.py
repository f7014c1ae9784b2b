"""Checkpoints of other programs: their tensors as this zoo's variables, and back. No training."""
