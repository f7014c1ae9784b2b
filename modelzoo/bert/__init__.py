"""BERT pre-training (also RoBERTa's and PubMedBERT's way). Holds no task but the pre-training's."""
