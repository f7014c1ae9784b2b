"""Says which examples make which batch.

A batch is a function of its number and the seed, so a stream of batches can begin anywhere at no
cost.
"""

from __future__ import annotations

import numpy as np


class EpochOrder:
    """Batches of numbered examples, each example once in every epoch.

    Args:
        count: number of examples.
        batch_size: examples of a batch.
        seed: of the order, which is another in every epoch; None for the examples' own order.
        keep_rest: whether an epoch ends with the examples that do not fill a batch.

    Attributes:
        batches_per_epoch: number of batches, 0 where the examples do not fill one.
    """

    def __init__(self, count, batch_size, seed, keep_rest=False):
        self._count = count
        self._batch_size = batch_size
        self._seed = seed
        self._epoch, self._order = None, np.arange(count)
        self.batches_per_epoch = -(-count // batch_size) if keep_rest else count // batch_size

    def examples_of(self, number):
        """Returns the numbers of the examples of a batch: int64 [its size]."""
        epoch, position = divmod(int(number), self.batches_per_epoch)
        if self._seed is not None and epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._epoch, self._order = epoch, generator.permutation(self._count)
        start = position * self._batch_size
        return self._order[start : start + self._batch_size]
