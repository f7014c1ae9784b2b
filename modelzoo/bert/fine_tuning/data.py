"""The data processor of all fine-tunings: records, or for prediction the texts themselves.

Features are ``input_ids``, ``input_mask`` (1 for padding) and ``segment_ids`` [B, S] int32, and
what the task adds. In records the mask is 1 for a token. B batch, S sequence length.
"""

from collections.abc import Callable
from typing import Optional

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.common.data import tf_records
from modelzoo.common.data.batches import predict_batches, row_lengths, row_shape
from modelzoo.common.fine_tuning.encoding import stack_rows

TOKENS = ("input_ids", "input_mask", "segment_ids")


class FineTuningProcessor(tf_records.RecordProcessor):
    """Reads batches of a fine-tuning.

    A task sets `token_columns`, the columns of records with a value for each token, and overrides
    `layout` and `split`. If prediction reads texts and no records, it sets `predicts_records` to
    False and `row_id` to the feature that numbers the examples, and overrides `read_examples` and
    `encode_row`.
    """

    token_columns: tuple[str, ...] = TOKENS
    row_id = ""

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches, without the first `skip`.

        Evaluation and prediction see every example, so their last batch may be smaller.
        """
        if predicting and not self.predicts_records:
            return self._text_batches(skip)
        section = self.section
        layout, group = self.layout(predicting), self.group(not training)
        dataset = tf_records.read_batches(section, layout, skip, not training, group, self.files())

        def example(parsed):
            parsed = self.change(self.change_records(parsed))
            if section.buckets is not None and not predicting:
                parsed = crop_padding(parsed, self.token_columns, row_lengths(section))
            features, labels = self.split(parsed)
            return {**features, "input_mask": 1 - features["input_mask"]}, labels

        return dataset.map(example, num_parallel_calls=2, deterministic=True).prefetch(4)

    def blank(self):
        return self.split(self.blank_records())

    def group(self, keep_remainder) -> Optional[Callable]:
        """Returns the function that batches records, None for batches in order."""
        return None

    def change(self, batch):
        """Returns a batch with what the task changes in its tokens; the mask is 1 for a token."""
        return batch

    def change_records(self, batch):
        """Returns a batch of records with the mask 1 for a token."""
        return batch

    def split(self, batch):
        """Returns features and labels of a batch of records."""
        raise NotImplementedError

    def read_examples(self):
        """Reads the texts to predict from.

        Returns pairs (value of `row_id`, example with ``ids`` [n]), the id of the padding token,
        and shape and dtype of each further feature by name.
        """
        raise NotImplementedError

    def encode_row(self, example, length, pad_id):
        """Returns an example's features as arrays; see `pad_tokens`."""
        raise NotImplementedError

    def _text_batches(self, skip):
        section = self.section
        examples, pad_id, columns = self.read_examples()

        def assemble(chosen, length):
            rows = [examples[place] for place in chosen]
            batch = stack_rows([self.encode_row(example, length, pad_id) for _, example in rows])
            return {**batch, self.row_id: np.array([[number] for number, _ in rows], np.int32)}

        columns = {
            **dict.fromkeys(TOKENS, (row_shape(section), tf.int32)),
            **columns,
            self.row_id: ([1], tf.int32),
        }
        lengths = [len(example.ids) for _, example in examples]

        def features(batch):
            batch = self.change(batch)
            return {**batch, "input_mask": 1 - batch["input_mask"]}, batch[self.row_id]

        return predict_batches(section, lengths, assemble, columns, skip).map(features)


def crop_padding(batch, names, bounds):
    """Shortens rows of tokens to the smallest bound that holds the batch's longest example.

    Args:
        batch: tensors by name, ``input_mask`` [B, S] int32 among them, 1 for a token.
        names: the tensors [B, S] to shorten.
        bounds: lengths that rows may have, ascending; the last is S.

    Returns:
        `batch` with those tensors [B, one of `bounds`].
    """
    full = bounds[-1]
    fitting = tf.constant([*bounds[:-1], full + 1])
    longest = tf.reduce_max(tf.reduce_sum(batch["input_mask"], axis=1))
    length = tf.minimum(tf.reduce_min(tf.boolean_mask(fitting, fitting > longest)), full)
    cropped = {
        name: tf.ensure_shape(batch[name][:, :length], [batch[name].shape[0], None])
        for name in names
    }
    return {**batch, **cropped}
