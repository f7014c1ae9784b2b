"""Optimizers, schedules and loss scaling. Knows nothing of a model's loss."""
