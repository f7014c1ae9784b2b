"""Evaluation without training on the task: probabilities of texts. Trains nothing."""
