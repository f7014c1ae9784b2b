"""Decodes token by token with a key-value cache in NumPy.

Shapes: B rows, S new tokens, C capacity of the cache, L layers, H heads, D head size, V vocabulary.
"""

import numpy as np

# The features of a decoder step, and their batch axes.
ROW_AXES = {"input_ids": 0, "positions": 0, "past_lengths": 0, "wanted": 0, "past": 2}
MIN_LENGTH = 16  # lengths of prompts and of the cache are padded to this times a power of two


class CachedDecoder:
    """Runs a model on prompts in one pass, then on one new token of each row at a time.

    The length of prompts and the capacity of the cache are padded to powers of two, so that the
    model is compiled for few shapes. The cache doubles when it is full.

    Args:
        step: Stepper, or a function like it, of a model that predicts as ``decoding_spec`` does.
        limit: maximum number of positions of a row, None for no limit.
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
        """Runs the model on prompts with an empty cache.

        Args:
            prompts: B sequences of at least one token. Their lengths may differ.

        Returns:
            Logits of the token after each prompt: [B, V] float32.
        """
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        ids = np.zeros([len(prompts), self._padded(np.max(lengths))], np.int32)
        for row, prompt in zip(ids, prompts):
            row[: len(prompt)] = prompt
        self._others = others
        self._past = self._empty_cache(len(prompts), 0)
        self.lengths = np.zeros(len(prompts), np.int32)
        return self._run(ids, lengths)

    def append(self, tokens, active=None):
        """Runs the model on one more token of each row.

        Args:
            tokens: [B] int32.
            active: [B] bool, rows whose token is appended. The others are unchanged.

        Returns:
            Logits of the next token: [B, V] float32, undefined for rows that are not active.
        """
        counts = np.ones(len(tokens), np.int32) if active is None else active.astype(np.int32)
        return self._run(np.asarray(tokens, np.int32)[:, None], counts)

    def reorder(self, rows):
        """Replaces row i of the cache by row ``rows[i]``, as beam search does.

        The further features given to `start` are not reordered.
        """
        self._past = np.ascontiguousarray(self._past[:, :, rows])
        self.lengths = self.lengths[rows]

    def step_shapes(self, rows, past_length):
        """Returns shape and dtype of the features of a step with one new token for each row.

        Returns:
            Pairs (shape, dtype) by name.
        """
        layers, two, heads, size = self._shape
        past = [layers, two, rows, heads, self._padded(past_length), size]
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
        if self._limit is not None:  # padding and inactive rows may exceed it
            positions = np.minimum(positions, self._limit - 1)
        outputs = self._step(
            input_ids=ids,
            positions=positions,
            past_lengths=self.lengths,
            wanted=np.maximum(counts - 1, 0),
            past=self._past,
            **self._others,
        )
        self._update_cache(outputs["present"], counts)
        return outputs["logits"]

    def _update_cache(self, present, counts):
        """Appends the first `counts` of each row's new keys and values to the cache."""
        needed = int((self.lengths + counts).max())
        if needed > np.shape(self._past)[4]:
            old, self._past = self._past, self._empty_cache(len(counts), self._padded(needed))
            self._past[:, :, :, :, : np.shape(old)[4]] = old
        for row, (start, count) in enumerate(zip(self.lengths, counts)):
            new = present[:, :, row, :, :count]
            self._past[:, :, row, :, start : start + count] = new
        self.lengths = self.lengths + counts

    def _empty_cache(self, rows, capacity):
        layers, two, heads, size = self._shape
        return np.zeros([layers, two, rows, heads, capacity, size], np.float32)

    def _padded(self, length):
        padded = MIN_LENGTH
        while padded < length:
            padded *= 2
        return padded if self._limit is None else min(padded, max(self._limit, int(length)))


def decoder_signature(num_layers, num_heads, head_size):
    """Returns the TensorSpecs by name of the features of a CachedDecoder's Stepper."""
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
