"""Weights and optimizer state: where they are stored and how they stream. No op is known here."""
