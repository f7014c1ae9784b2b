"""Modes of a run."""
