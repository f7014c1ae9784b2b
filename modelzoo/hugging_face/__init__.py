"""Models of transformers, pre-trained and fine-tuned by params files."""
