"""The sentences that `bench` trains SHAPES["bert"] on are as long as SST-2's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.models import (
    MULTI30K_ENGLISH,
    MULTI30K_GERMAN,
    SST2_PIECES,
    batches_of,
    make_input_fn,
    sentence_lengths,
)
from benchmarks.training import SHAPES


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


def test_pairs_are_as_long_as_those_of_multi30k():
    for counts, mean in ((MULTI30K_ENGLISH, 13.1286), (MULTI30K_GERMAN, 12.6124)):
        words = np.repeat(np.arange(len(counts)), counts)
        assert len(words) == 29000  # lines of the training set
        assert words.mean() == pytest.approx(mean, abs=1e-3)
    shape = SHAPES["transformer"]
    for pad in ("fixed", "batch"):
        batches = batches_of(dataclasses.replace(shape, pad=pad))
        for features, labels in batches:
            longest = max(features[f"{side}_input_length"].max() for side in ("encoder", "decoder"))
            assert labels.shape == (64, shape.sequence if pad == "fixed" else longest)
        lengths = np.concatenate([features["decoder_input_length"] for features, _ in batches])
        assert lengths.mean() == pytest.approx(13.6, abs=0.5)
