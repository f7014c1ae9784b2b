"""Decodes token by token with a cache of keys and values, which the driver keeps in NumPy.

Sampling and beam search choose the tokens, from the logits it returns.

Shapes: B rows, S new tokens, C capacity of the cache, L layers, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

import numpy as np

# What a step of the decoder is fed, and which of its axes are rows.
ROW_AXES = {"input_ids": 0, "positions": 0, "past_lengths": 0, "wanted": 0, "past": 2}
SMALLEST = 16  # sizes of the prompt pass and of the cache are this times a power of two


class CachedDecoder:
    """Runs a model on prompts in one pass, then on one token a row and step.

    The model is compiled for few shapes only: the prompt's length and the cache's capacity are
    powers of two, and the cache doubles when it is full.

    Args:
        step: Stepper, or a function like it, of a model that predicts as ``driven_spec`` does.
        num_layers: L.
        num_heads: H.
        head_size: D.
        limit: most positions of a row; None where the model has no limit.
    """

    def __init__(self, step, num_layers, num_heads, head_size, limit=None):
        self._step = step
        self._shape = (num_layers, 2, num_heads, head_size)
        self._limit = limit
        self._others = {}
        self._past = np.zeros(0, np.float32)
        self.lengths = np.zeros(0, np.int32)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._step.close()

    def start(self, prompts, **others):
        """Runs the model on prompts, forgetting those before.

        Args:
            prompts: B sequences of at least one token; their lengths may differ.
            **others: further features of every step, such as an encoder's output.

        Returns:
            Logits of the token after each prompt: [B, V] float32.
        """
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        ids = np.zeros([len(prompts), self._rounded(lengths.max())], np.int32)
        for row, prompt in zip(ids, prompts):
            row[: len(prompt)] = prompt
        self._others = others
        self._past = self._blank(len(prompts), 0)
        self.lengths = np.zeros(len(prompts), np.int32)
        return self._run(ids, lengths)

    def append(self, tokens, active=None):
        """Runs the model on one more token of each row.

        Args:
            tokens: [B] int32.
            active: [B] bool, rows that take their token; the others stay as they are.

        Returns:
            Logits of the token after: [B, V] float32; meaningless for rows that are not active.
        """
        counts = np.ones(len(tokens), np.int32) if active is None else active.astype(np.int32)
        return self._run(np.asarray(tokens, np.int32)[:, None], counts)

    def reorder(self, rows):
        """Makes row i what row ``rows[i]`` was; a row may be taken several times, or never.

        Further features are the same rows' and stay where they are.
        """
        self._past = np.ascontiguousarray(self._past[:, :, rows])
        self.lengths = self.lengths[rows]

    def token_shapes(self, rows, before):
        """Returns shape and dtype of the features, by name, of a step that makes a token a row.

        Args:
            rows: B.
            before: tokens before it.
        """
        layers, two, heads, size = self._shape
        past = [layers, two, rows, heads, self._rounded(before), size]
        return {
            "input_ids": ([rows, 1], np.int32),
            "positions": ([rows, 1], np.int32),
            "past_lengths": ([rows], np.int32),
            "wanted": ([rows], np.int32),
            "past": (past, np.float32),
        }

    def _run(self, ids, counts):
        length = ids.shape[1]
        positions = self.lengths[:, None] + np.arange(length, dtype=np.int32)
        if self._limit is not None:  # of padding, and of rows that are not active
            positions = np.minimum(positions, self._limit - 1)
        outputs = self._step(
            input_ids=ids,
            positions=positions,
            past_lengths=self.lengths,
            wanted=np.maximum(counts - 1, 0),
            past=self._past,
            **self._others,
        )
        self._remember(outputs["present"], counts)
        return outputs["logits"]

    def _remember(self, present, counts):
        """Writes the first `counts` of each row's new keys and values behind its old ones."""
        needed = int((self.lengths + counts).max())
        if needed > self._past.shape[4]:
            old, self._past = self._past, self._blank(len(counts), self._rounded(needed))
            self._past[:, :, :, :, : old.shape[4]] = old
        for row, (start, count) in enumerate(zip(self.lengths, counts)):
            new = present[:, :, row, :, :count]
            self._past[:, :, row, :, start : start + count] = new
        self.lengths = self.lengths + counts

    def _blank(self, rows, capacity):
        layers, two, heads, size = self._shape
        return np.zeros([layers, two, rows, heads, capacity, size], np.float32)

    def _rounded(self, length):
        rounded = SMALLEST
        while rounded < length:
            rounded *= 2
        return rounded if self._limit is None else min(rounded, max(self._limit, int(length)))


def decoder_signature(num_layers, num_heads, head_size):
    """Returns the features of a Stepper that a CachedDecoder calls: TensorSpecs by name."""
    import tensorflow.compat.v1 as tf

    matrix, vector = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
    past = [num_layers, 2, None, num_heads, None, head_size]
    return {
        "input_ids": matrix,
        "positions": matrix,
        "past_lengths": vector,
        "wanted": vector,
        "past": tf.TensorSpec(past, tf.float32),
    }
