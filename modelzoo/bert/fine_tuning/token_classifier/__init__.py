"""BERT that labels every word of a sentence, such as named entities."""
