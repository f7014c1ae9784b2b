"""Turns text into training records ahead of training. Deliberately no part of a training run."""
