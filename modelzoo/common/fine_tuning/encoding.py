"""The WordPiece encoder of all fine-tunings, and padded rows. S is the sequence length."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from modelzoo.common.tokenizers.tokenizers import load_tokenizer, require_tokens


class Encoder:
    """Tokenizes text with the vocabulary of a BERT.

    Args:
        *more: special tokens that are required besides [CLS], [SEP] and [PAD], such as ``unk``.

    Attributes:
        pad_id: id of [PAD].
    """

    def __init__(self, vocab_file, do_lower_case, *more):
        self.tokenizer: Any = load_tokenizer(
            "BertTokenizer", vocab_file, do_lower_case=do_lower_case
        )
        require_tokens(self.tokenizer, "cls", "sep", "pad", *more)
        self.pad_id = self.tokenizer.pad_id

    @property
    def vocabulary(self):
        """Size and digest of the vocabulary, for the manifest."""
        return self.tokenizer.facts


def pad_tokens(example, length, pad_id):
    """Pads an example to a fixed length.

    Args:
        example: has ``ids`` and ``segments``, [n] int32 with n <= `length`.

    Returns:
        ``input_ids``, ``input_mask`` (1 for a token) and ``segment_ids`` by name, each [S] int32.
    """
    size = len(example.ids)
    ids, segments = np.full(length, pad_id, np.int32), np.zeros(length, np.int32)
    ids[:size], segments[:size] = example.ids, example.segments
    mask = (np.arange(length) < size).astype(np.int32)
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def stack_rows(rows):
    """Stacks dictionaries of arrays [...] into one of arrays [B, ...]."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def settings_of(cls, section, **others):
    """Returns the dataclass `cls` with what an input section has of its fields, and the others."""
    named = [each.name for each in fields(cls) if hasattr(section, each.name)]
    return cls(**{name: getattr(section, name) for name in named}, **others)
