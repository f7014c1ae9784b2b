"""The sentences that `bench` trains SHAPES["bert"] on are as long as SST-2's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from modelzoo.commands.bench import SHAPES
from modelzoo.commands.bench_models import SST2_PIECES, make_input_fn, sentence_lengths


def test_lengths_are_those_of_the_training_set():
    pieces = np.repeat(np.arange(len(SST2_PIECES)), SST2_PIECES)
    assert len(pieces) == 67349 and pieces.max() == 64  # lines of GLUE's train.tsv
    assert pieces.mean() == pytest.approx(11.319, abs=1e-3)
    lengths = sentence_lengths(SHAPES["bert"])
    assert lengths.min() >= 3 and lengths.mean() == pytest.approx(13.3, abs=0.7)


@pytest.mark.tf
@pytest.mark.parametrize("pad", ["fixed", "batch"])
def test_batches_are_padded_to_one_length_or_to_their_longest(pad):
    pytest.importorskip("tensorflow")
    shape = dataclasses.replace(SHAPES["bert"], batch=4, pad=pad)
    lengths = sentence_lengths(shape)
    for (features, labels), wanted in zip(make_input_fn(shape)().as_numpy_iterator(), lengths):
        width = 128 if pad == "fixed" else wanted.max()
        assert features["input_ids"].shape == (4, width) and labels.shape == (4,)
        np.testing.assert_array_equal((features["input_mask"] == 0).sum(axis=1), wanted)
