"""Turns text into training records ahead of training. It is no part of a training run."""
