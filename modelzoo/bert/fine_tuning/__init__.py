"""Tasks that a pre-trained BERT is tuned to, a folder each. Holds what they share, no task."""
