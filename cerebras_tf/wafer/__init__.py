"""Predicts what a CS-2 would do with a model: time, memory, floor plan. It computes no tensors."""
