"""Tests of modelzoo/transformer/pairs.py: what batches hold, and that seeds decide them."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import DataError
from modelzoo.transformer.pairs import EOS, FEATURES, NO_PAIR, SOS, PairBatches, Pairs, make_batch


def random_pairs(count=50, longest=12, seed=0):
    rng = np.random.default_rng(seed)
    sides = [[rng.integers(4, 99, n) for n in rng.integers(1, longest, count)] for _ in range(2)]
    return Pairs(*sides, longest, longest)


def batch_of(batches, number):
    return dict(zip((*FEATURES, "labels"), batches.batch(number)))


def test_a_batch_holds_start_and_end_tokens_masks_and_the_scale_of_the_loss():
    pairs = Pairs([np.array([7, 8]), np.array([9])], [np.array([5]), np.array([6, 4, 5])], 4, 4)
    batch = dict(zip((*FEATURES, "labels"), make_batch(pairs, [1, 0], 3, 4)))
    assert batch["encoder_input_ids"].tolist() == [[9, 0, 0, 0], [7, 8, 0, 0], [0, 0, 0, 0]]
    assert batch["encoder_input_length"].tolist() == [1, 2, 0]
    assert batch["encoder_mask"].tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]]
    assert batch["decoder_input_ids"].tolist() == [[SOS, 6, 4, 5], [SOS, 5, 0, 0], [0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[6, 4, 5, EOS], [5, EOS, 0, 0], [0, 0, 0, 0]]
    assert batch["decoder_input_length"].tolist() == [4, 2, 0]
    assert batch["decoder_mask"].tolist() == [[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]]
    assert batch["pair_index"].tolist() == [1, 0, NO_PAIR]
    assert batch["loss_scale"].dtype == np.float32
    np.testing.assert_allclose(batch["loss_scale"], 3 / 6)


def test_pairs_that_are_empty_or_too_long_are_dropped_and_counted():
    side = [np.arange(4, 4 + n) for n in (0, 1, 5, 6)]
    pairs = Pairs(side, side[::-1], 5, 6)
    assert pairs.sources.lengths.tolist() == [1, 5] and pairs.dropped == 2
    assert Pairs(side, side, 5, 5).dropped == 3, "the end token counts"


def test_sources_to_translate_are_cut_and_not_dropped():
    side = [np.arange(4, 4 + n) for n in (0, 1, 5, 6)]
    pairs = Pairs(side, [np.zeros(0, int)] * 4, 5, 6, cut=True)
    assert len(pairs) == 4 and pairs.dropped == 0 and pairs.cut == 1
    assert pairs.sources[3].tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("seed", [None, 3])
def test_every_pair_is_evaluated_once_in_rows_that_hold_it(seed):
    pairs = random_pairs()
    batches = PairBatches(pairs, (4, 8, 12), 8, seed, keep_all=True)
    seen = []
    for number in range(batches.batches_per_epoch):
        batch = batch_of(batches, number)
        length = batch["labels"].shape[1]
        real = batch["pair_index"] != NO_PAIR
        seen += batch["pair_index"][real].tolist()
        longest = np.maximum(batch["encoder_input_length"], batch["decoder_input_length"])[real]
        assert {4: 0, 8: 4, 12: 8}[length] <= longest.max() <= length
    assert sorted(seen) == list(range(len(pairs)))


def test_without_a_seed_short_pairs_come_first_each_length_in_the_order_of_the_text():
    pairs = random_pairs()
    batches = PairBatches(pairs, (8, 12), 8, None, keep_all=True)
    shapes = [batch_of(batches, number)["labels"].shape[1] for number in range(7)]
    assert shapes == sorted(shapes) and set(shapes) == {8, 12}
    rows = np.concatenate([batch_of(batches, number)["pair_index"] for number in range(7)])[:50]
    needed = np.maximum(pairs.sources.lengths, pairs.targets.lengths + 1)[rows]
    bucket = (needed >= 8).astype(int)
    assert (np.diff(bucket) >= 0).all()
    assert all((np.diff(rows[bucket == number]) > 0).all() for number in range(2))


def test_training_batches_are_full_and_differ_from_epoch_to_epoch():
    batches = PairBatches(random_pairs(), (6, 12), 8, 3, keep_all=False)
    epochs = []
    for epoch in range(2):
        numbers = range(epoch * batches.batches_per_epoch, (epoch + 1) * batches.batches_per_epoch)
        rows = [batch_of(batches, number)["pair_index"] for number in numbers]
        assert all((row != NO_PAIR).all() for row in rows)
        flat = np.concatenate(rows)
        assert len(set(flat.tolist())) == len(flat)
        epochs.append(flat.tolist())
    assert epochs[0] != epochs[1]


def test_a_batch_depends_on_its_number_only_so_that_a_run_goes_on_where_it_was():
    through = PairBatches(random_pairs(), (6, 12), 8, 3, keep_all=False)
    expected = [through.batch(number) for number in range(20)][17]
    for ours, theirs in zip(PairBatches(random_pairs(), (6, 12), 8, 3, False).batch(17), expected):
        np.testing.assert_array_equal(ours, theirs)


def test_too_few_pairs_for_a_batch_are_told():
    with pytest.raises(DataError, match="must hold at least 64 examples, one batch. Received: 50"):
        PairBatches(random_pairs(), (6, 12), 64, 3, keep_all=False)
