"""Reads, writes and restores checkpoints of models whose variables are in a store."""
