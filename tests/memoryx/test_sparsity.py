"""How much of every layer is pruned, and where."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.memoryx import sparsity
from cerebras_tf.memoryx.sparsifier import (
    SPARSIFIER_MAP,
    TopKSparsifier,
    get_AdamW_aware_sparsifier_class,
)

SHAPES = {"a/kernel": (8, 8), "b/kernel": (64, 32), "c/kernel": (3, 3, 16, 32)}
LEVELS = (0.0, 0.3, 0.5, 0.9)


def weight(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("level", LEVELS)
def test_top_k_keeps_the_largest_magnitudes(level):
    w = weight(7, 11)
    mask = sparsity.top_k(w, level)
    assert (~mask).sum() == sparsity.kept_count(w.size, level) == int((1 - level) * 77)
    assert not mask.any() or np.abs(w[mask]).max() <= np.abs(w[~mask]).min()


def test_top_k_of_equal_magnitudes_prunes_those_again_that_are_pruned_already():
    w = np.zeros((6, 10), np.float32)
    first = sparsity.at_random(w, 0.7, "w", 3)
    w[first] = -0.0
    np.testing.assert_array_equal(sparsity.top_k(w, 0.7), first)


@pytest.mark.parametrize("level", LEVELS)
def test_balanced_top_k_prunes_columns_alike_and_as_much_as_top_k(level):
    w = weight(10, 6)
    mask = sparsity.balanced_top_k(w, level)
    assert mask.sum() == sparsity.top_k(w, level).sum()
    assert np.ptp(mask.sum(0)) <= 1
    for column in range(6):
        pruned = np.abs(w[mask[:, column], column])
        kept = np.abs(w[~mask[:, column], column])
        assert not len(pruned) or not len(kept) or pruned.max() <= kept.min()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(8, 10), (9, 1), (3, 3, 4, 5)])
def test_checkerboard_prunes_rows_and_columns_alike(level, shape):
    mask = sparsity.checkerboard(weight(*shape), level).reshape(-1, shape[-1])
    assert np.ptp(mask.sum(0)) <= 1 and np.ptp(mask.sum(1)) <= 1
    assert mask.mean() == pytest.approx(level, abs=1 / min(max(mask.shape), mask.size))
    np.testing.assert_array_equal(mask[1:, :-1], mask[:-1, 1:])


def test_random_masks_follow_from_name_and_seed():
    w = weight(20, 20)
    first = sparsity.at_random(w, 0.75, "a", 1)
    assert first.sum() == 300
    np.testing.assert_array_equal(first, sparsity.at_random(-w, 0.75, "a", 1))
    for other in (("b", 1), ("a", 2)):
        assert 0.2 < (sparsity.at_random(w, 0.75, *other) == first).mean() < 0.8


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_erdos_renyi_levels_prune_that_much_of_all_and_small_layers_least(level, kernel):
    found = sparsity.erdos_renyi_levels(SHAPES, level, kernel=kernel)
    sizes = {name: math.prod(shape) for name, shape in SHAPES.items()}
    pruned = sum(found[name] * sizes[name] for name in SHAPES)
    assert pruned == pytest.approx(level * sum(sizes.values()))
    assert 0 <= found["a/kernel"] <= found["b/kernel"]
    # Layers that are not dense: density is proportional to sum / product of sizes.
    open_ = [name for name in SHAPES if found[name] > 0]
    factors = []
    for name in open_:
        shape = SHAPES[name] if kernel else SHAPES[name][-2:]
        factors.append((1 - found[name]) * math.prod(shape) / sum(shape))
    np.testing.assert_allclose(factors, factors[0])


def test_power_zero_is_uniform():
    found = sparsity.erdos_renyi_levels(SHAPES, 0.8, power=0)
    np.testing.assert_allclose(list(found.values()), 0.8)


def test_what_is_left_dense_unless_it_is_named():
    shapes = {**SHAPES, "a/bias": (8,), "embedding/table": (50, 8), "LayerNorm/matrix": (2, 8)}
    assert set(TopKSparsifier(1, 0.5).get_sparsity_levels(shapes)) == set(SHAPES)
    named = TopKSparsifier(1, {"^a/": 0.9, "table": 0.2, "kernel": 0.5})
    assert named.get_sparsity_levels(shapes) == {
        "a/kernel": 0.9,
        "b/kernel": 0.5,
        "c/kernel": 0.5,
        "embedding/table": 0.2,
    }


@pytest.mark.parametrize("name", ["constant", "topk", "balanced-topk", "checkerboard"])
def test_masked_weights_and_their_counts_by_the_original_s_methods(name):
    made = get_AdamW_aware_sparsifier_class(SPARSIFIER_MAP[name])(n_iter=3, sparsity_level=0.5)
    assert [step for step in range(7) if made.apply_sparsity(step)] == [0, 3, 6]
    weights = {"kernel": weight(8, 6), "bias": weight(6)}
    found = made.get_masked_weights(0, weights, float("nan"))
    pruned = np.isnan(found["kernel"])
    assert pruned.sum() == made.get_num_sparsified_values("kernel", float("nan")) == 24
    np.testing.assert_array_equal(found["kernel"][~pruned], weights["kernel"][~pruned])
    assert found["bias"] is weights["bias"]
    assert made.get_num_sparsified_values("bias", float("nan")) == 0
    again = made.get_masked_weights(0, found, 0.0)
    np.testing.assert_array_equal(again["kernel"] == 0, pruned)


@pytest.mark.parametrize(
    "given",
    [
        {"n_iter": 0},
        {"sparsity_level": 1.0},
        {"sparsity_level": {}},
        {"sparsity_level": {"a": -0.1}},
        {"sparsity_distribution": "erdos"},
        {"sparsity_distribution": "erk", "sparsity_level": {"a": 0.5}},
        {"erk_power_scale": -1.0},
        {"zeta": 0.3},
        {"mask_file": "masks"},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(given):
    with pytest.raises(ConfigError, match=f"sparsifier: {list(given)[-1]}|{list(given)[0]}"):
        TopKSparsifier(**given)


def test_names_that_fit_no_weight_or_no_sparsifier_are_refused():
    with pytest.raises(ConfigError, match="every name must match a weight. Received: nothing"):
        TopKSparsifier(1, {"kernel": 0.5, "nothing": 0.5}).get_sparsity_levels(SHAPES)
    with pytest.raises(ConfigError, match="names must be regular expressions"):
        TopKSparsifier(1, {"(": 0.5}).get_sparsity_levels(SHAPES)
    with pytest.raises(ConfigError, match="names are balanced-topk, checkerboard, .*'set'"):
        SPARSIFIER_MAP["set"]
