"""BERT that answers questions with a span of a paragraph."""
