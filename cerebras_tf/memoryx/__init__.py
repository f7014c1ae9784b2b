"""Weights and optimizer state: where they rest and how they stream. No op is known here."""
