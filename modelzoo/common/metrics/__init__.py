"""Metrics. Those of a model_fn's host_call import TensorFlow on first use."""

import importlib

_FILES = {
    "language_model": ("bits_per_byte lm_metrics masked_lm_metrics perplexity seq2seq_lm_metrics"),
    "classification": "classifier_metrics next_sentence_metrics",
    "summarization": "rouge_metrics",
    "token_classification": "token_classification_metrics",
}
_PUBLIC = {name: file for file, names in _FILES.items() for name in names.split()}
__all__ = sorted(_PUBLIC)


def __getattr__(name):
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
