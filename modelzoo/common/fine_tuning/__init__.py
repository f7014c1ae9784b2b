"""Texts of the fine-tunings of BERT, their tokens, and the files that predict mode writes."""
