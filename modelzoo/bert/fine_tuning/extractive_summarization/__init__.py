"""BERT that picks the sentences of an article that summarize it (BERTSUM)."""
