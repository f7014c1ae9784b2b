"""Chooses the examples of each batch, and makes datasets of batches of examples in memory.

A batch is a function of its number and the seed, so a stream can start at any batch. Examples of
similar lengths are batched together, because padding costs as much as tokens.
"""

import numpy as np

from cerebras_tf.errors import DataError


class EpochOrder:
    """Batches of numbered examples, each example once in every epoch.

    Args:
        seed: of the order, which differs between epochs; None for the order of the examples.
        keep_remainder: whether the last batch of an epoch may be smaller.

    Attributes:
        batches_per_epoch: number of batches; 0 if there are too few examples.
    """

    def __init__(self, count, batch_size, seed, keep_remainder=False):
        self._count = count
        self._batch_size = batch_size
        self._seed = seed
        self._epoch, self._order = None, np.arange(count)
        self.batches_per_epoch = -(-count // batch_size) if keep_remainder else count // batch_size

    def examples_of(self, number):
        """Returns the numbers of the examples of a batch: int64 [its size]."""
        epoch, position = divmod(int(number), self.batches_per_epoch)
        if self._seed is not None and epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._epoch, self._order = epoch, generator.permutation(self._count)
        start = position * self._batch_size
        return self._order[start : start + self._batch_size]


def bucket_of(lengths, bounds):
    """Returns the numbers of the buckets that lengths belong to; see BatchPlan's `bounds`."""
    return np.searchsorted(bounds[:-1], lengths, side="right")


class BatchPlan:
    """Batches of examples, addressed by their number.

    Args:
        lengths: [number of examples] integers, tokens of each.
        bounds: lengths of rows, ascending; the last holds every example, the others those shorter.
        seed: of the order, which differs between epochs; None for the order of the examples.
        keep_remainder: whether the last batch of an epoch may be smaller.
    """

    def __init__(self, lengths, batch_size, bounds, seed, keep_remainder=False):
        self._lengths = np.asarray(lengths)
        self._batch_size = batch_size
        self._bounds = list(bounds)
        self._seed = seed
        self._keep_rest = keep_remainder
        self._epoch, self._batches = None, None
        count = len(self._lengths)
        self.batches_per_epoch = -(-count // batch_size) if keep_remainder else count // batch_size
        if not self.batches_per_epoch:
            raise DataError(
                f"data: must contain at least {1 if keep_remainder else batch_size} examples, one "
                f"batch. Received: {count}. Add examples, or lower batch_size."
            )

    def batch(self, number):
        """Returns the examples of a batch, int64 [its size], and the length of its rows."""
        epoch, position = divmod(int(number), self.batches_per_epoch)
        if self._seed is None:
            start = position * self._batch_size
            last = min(start + self._batch_size, len(self._lengths))
            chosen = np.arange(start, last)
        else:
            chosen = self._batches_of(epoch)[position]
        return chosen, self._bounds[bucket_of(self._lengths[chosen].max(), self._bounds)]

    def _batches_of(self, epoch):
        """Batches every bucket, then the remainders of all buckets, and shuffles the batches."""
        if epoch == self._epoch:
            return self._batches
        generator = np.random.default_rng([self._seed, epoch])
        order = generator.permutation(len(self._lengths))
        buckets = bucket_of(self._lengths[order], self._bounds)
        size, batches, remainders = self._batch_size, [], []
        for bucket in range(len(self._bounds)):
            members = order[buckets == bucket]
            whole = len(members) // size * size
            batches += list(members[:whole].reshape(-1, size))
            remainders.append(members[whole:])
        remainder = np.concatenate(remainders)
        batches += [remainder[start : start + size] for start in range(0, len(remainder), size)]
        short = batches.pop() if batches and len(batches[-1]) < size else None
        batches = [batches[place] for place in generator.permutation(len(batches))]
        if short is not None and self._keep_rest:
            batches.append(short)
        self._epoch, self._batches = epoch, batches
        return batches


def planned_batches(plan, assemble, columns, skip, batch_size=None, repeats=False):
    """Makes a dataset of batches that are assembled in Python.

    Args:
        assemble: function of the numbers of a batch's examples, int64 [B], and the length of its
            rows; returns the arrays of `columns` by name.
        columns: shape of an example's part and type, by name; None for a length that changes.
        batch_size: B; None if the last batch may be smaller.

    Returns:
        A dataset of dictionaries of tensors [B, ...].
    """

    import tensorflow.compat.v1 as tf

    def arrays(number):
        made = assemble(*plan.batch(number))
        return [made[name] for name in columns]

    def batch(number):
        tensors = tf.numpy_function(arrays, [number], [dtype for _, dtype in columns.values()])
        for tensor, (shape, _) in zip(tensors, columns.values()):
            tensor.set_shape([batch_size, *shape])
        return dict(zip(columns, tensors))

    training = batch_size is not None
    return numbered_batches(batch, skip, plan.batches_per_epoch, repeats, training, 4)


def numbered_batches(make, skip, batches_per_epoch, repeats, training, prefetched=2):
    """Makes a dataset of batches by their numbers.

    The size of one for evaluation is known, for the time left. One for training has no operation
    for that: it would change the seeds of the operations after it.

    Args:
        make: function of the number of a batch, a tensor.
        skip: number of the first batch.
    """
    import tensorflow.compat.v1 as tf

    last = tf.int64.max if repeats else batches_per_epoch
    dataset = tf.data.Dataset.range(skip, last).map(make).prefetch(prefetched)
    if repeats or training:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(max(last - skip, 0)))


def predict_batches(section, lengths, assemble, columns, skip):
    """Makes the dataset of a prediction: every example once, in order.

    Args:
        section: an input section with `batch_size`, `buckets` and `max_sequence_length`.
        lengths: [number of examples] integers, tokens of each.

    Returns:
        See `planned_batches`.
    """
    plan = BatchPlan(
        lengths, section.batch_size, row_lengths(section), seed=None, keep_remainder=True
    )
    return planned_batches(plan, assemble, columns, skip)


def row_lengths(section):
    """Returns the lengths that the rows of a batch may have, ascending."""
    return [*(section.buckets or ()), section.max_sequence_length]


def row_shape(section):
    """Returns the static shape of a row of tokens."""
    return [None if section.buckets else section.max_sequence_length]
