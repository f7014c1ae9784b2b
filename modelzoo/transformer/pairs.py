"""Sentence pairs in memory, and their batches by length.

A token takes two or four bytes: the 4.5 million pairs of WMT16 en-de about 600 MB.

Shapes: B batch, S source, T target with its start or end token.
"""

import numpy as np

from modelzoo.common.data.batches import BatchPlan, bucket_of

PAD, UNK, SOS, EOS = 0, 1, 2, 3
NO_PAIR = -1  # pair_index of a row of padding
FEATURES = (
    "encoder_input_ids",
    "encoder_input_length",
    "encoder_mask",
    "decoder_input_ids",
    "decoder_input_length",
    "decoder_mask",
    "loss_scale",
    "pair_index",
)


class Rows:
    """Rows of tokens of different lengths.

    Args:
        rows: list of [n] integers.
    """

    def __init__(self, rows):
        self.lengths = np.array([len(row) for row in rows], np.int64)
        self._ends = np.cumsum(self.lengths)
        flat = np.concatenate([np.zeros(0, np.int32), *rows])
        self._flat = flat.astype(np.uint16 if flat.max(initial=0) < 1 << 16 else np.int32)

    def __getitem__(self, index):
        end = self._ends[index]
        return self._flat[end - self.lengths[index] : end]


class Pairs:
    """Sentence pairs as tokens.

    Args:
        sources: list of [n] integers.
        cut: whether longer sides are truncated, as in prediction. Otherwise such pairs, and those
            with an empty side, are dropped.
    """

    def __init__(self, sources, targets, max_source, max_target, cut=False):
        limits = (max_source, max_target - 1)
        fits = [
            0 < len(source) <= limits[0] and 0 < len(target) <= limits[1]
            for source, target in zip(sources, targets)
        ]
        self.dropped = 0 if cut else len(fits) - sum(fits)
        self.cut = sum(len(source) > limits[0] for source in sources) if cut else 0
        if not cut:
            sources = [row for row, keep in zip(sources, fits) if keep]
            targets = [row for row, keep in zip(targets, fits) if keep]
        self.sources = Rows([row[: limits[0]] for row in sources])
        self.targets = Rows([row[: limits[1]] for row in targets])

    def __len__(self):
        return len(self.sources.lengths)


class PairBatches:
    """Batches of pairs of about one length, addressed by their number.

    Args:
        lengths: lengths that batches are padded to, ascending. The last one fits every pair.
        seed: of the order; None sorts by length, the shortest first.
        keep_all: whether the last batch is padded with empty rows, so that every pair is used.
            Otherwise pairs that fill no batch are skipped, others in each epoch.
    """

    def __init__(self, pairs, lengths, batch_size, seed, keep_all):
        self.pairs = pairs
        self._batch_size = batch_size
        needed = np.maximum(pairs.sources.lengths, pairs.targets.lengths + 1)
        self._order = np.arange(len(pairs))
        if seed is None:
            self._order = np.argsort(bucket_of(needed, lengths), kind="stable")
        self._plan = BatchPlan(needed[self._order], batch_size, lengths, seed, keep_all)
        self.batches_per_epoch = self._plan.batches_per_epoch

    def batch(self, number):
        """Returns the features of a batch in the order of FEATURES, and then its labels.

        All are int32 but loss_scale, float32: B / the number of target tokens of the batch.
        Masks are 1 for padding.
        """
        chosen, length = self._plan.batch(number)
        return make_batch(self.pairs, self._order[chosen], self._batch_size, length)


def make_batch(pairs, rows, batch_size, length):
    """Pads pairs to a batch; see PairBatches.batch.

    Args:
        rows: numbers of the pairs, at most B.
    """
    shape = (batch_size, length)
    source, target, labels = (np.full(shape, PAD, np.int32) for _ in range(3))
    source_length, target_length = np.zeros(batch_size, np.int32), np.zeros(batch_size, np.int32)
    index = np.full(batch_size, NO_PAIR, np.int32)
    for place, row in enumerate(rows):
        ids, answer = pairs.sources[row], pairs.targets[row]
        source[place, : len(ids)] = ids
        target[place, 0], target[place, 1 : len(answer) + 1] = SOS, answer
        labels[place, : len(answer)], labels[place, len(answer)] = answer, EOS
        source_length[place], target_length[place] = len(ids), len(answer) + 1
        index[place] = row
    positions = np.arange(length)
    source_mask, target_mask = (
        (positions >= lengths[:, None]).astype(np.int32)
        for lengths in (source_length, target_length)
    )
    scale = np.full(shape, batch_size / max(1, target_length.sum()), np.float32)
    side = (source, source_length, source_mask, target, target_length, target_mask)
    return (*side, scale, index, labels)
