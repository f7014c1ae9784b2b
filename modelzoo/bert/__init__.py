"""BERT pre-training, also as RoBERTa and PubMedBERT do it."""
