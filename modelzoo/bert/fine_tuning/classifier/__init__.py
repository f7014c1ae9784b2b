"""BERT that sorts sentences and pairs of sentences into classes."""
