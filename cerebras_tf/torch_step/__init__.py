"""Trains captured PyTorch models on the runtime."""
