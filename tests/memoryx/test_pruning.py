"""Masks on a store: marks, state, and what is written."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.kernels.half_precision import as_float32
from cerebras_tf.memoryx.pruning import prune
from cerebras_tf.memoryx.sparsifier import BaseSparsifier, TopKSparsifier
from cerebras_tf.memoryx.sparsity import is_pruned
from cerebras_tf.memoryx.store import MemoryStore, write
from tests.machines import content_of

STATE = {"w/m": "w"}


def store_of(dtype="float32"):
    """A matrix with zeros of both signs, its moment, and a matrix that stays dense."""
    specs = [
        Variable("w", TensorType(dtype, (4, 6)), True),
        Variable("w/m", TensorType("bfloat16", (4, 6))),
        Variable("dense", TensorType("float32", (2, 2)), True),
    ]
    store, random = MemoryStore(specs), np.random.default_rng(0)
    for spec in specs:
        content = random.standard_normal(spec.type.static_shape).astype(np.float32)
        if spec.name == "w":
            content[0, :2] = 0.0, -0.0
        write(store, spec.name, content)
    return store


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_pruned_entries_are_negative_zeros_and_no_others(dtype):
    store = store_of(dtype)
    before = as_float32(content_of(store, "w"), dtype)
    found = prune(store, TopKSparsifier(1, {"^w$": 0.5}), ["w", "dense"], 0, STATE)
    assert found == {"w": 0.5}
    after = as_float32(content_of(store, "w"), dtype)
    mask = is_pruned(after)
    assert mask.sum() == 12 and mask[0, :2].all()
    np.testing.assert_array_equal(after[~mask], before[~mask])
    moment = as_float32(content_of(store, "w/m"), "bfloat16")
    assert not moment[mask].any() and moment[~mask].all()


def test_a_kept_zero_is_no_mark():
    store = store_of()
    content = np.zeros((4, 6), np.float32)
    content[0] = -0.0
    write(store, "w", content)
    prune(store, TopKSparsifier(1, {"^w$": 0.2}), ["w"], 0, {})
    after = content_of(store, "w")
    assert not after.any() and is_pruned(after).sum() == 5


def test_what_is_masked_already_is_not_written_again():
    store = store_of()
    sparsifier = TopKSparsifier(1, {"^w$": 0.5})
    prune(store, sparsifier, ["w"], 0, STATE)
    version, bits = store.version, content_of(store, "w").tobytes()
    assert prune(store, sparsifier, ["w"], 7, STATE) == {"w": 0.5}
    assert (store.version, content_of(store, "w").tobytes()) == (version, bits)


def test_masks_in_the_weights_stay_where_the_sparsifier_makes_none():
    store = store_of()
    with pytest.raises(ConfigError, match="at step 5, .* no weight is masked"):
        write(store, "w", np.ones((4, 6), np.float32))
        prune(store, TopKSparsifier(3, {"^w$": 0.5}), ["w"], 5, STATE)
    prune(store, TopKSparsifier(3, {"^w$": 0.75}), ["w"], 3, STATE)
    assert prune(store, TopKSparsifier(3, {"^w$": 0.5}), ["w"], 5, STATE) == {"w": 0.75}


class Own(BaseSparsifier):
    """Prunes the first column; of some other weights than it was given, where told."""

    def __init__(self, returned=None):
        self.returned = returned

    def apply_sparsity(self, step):
        return True

    def get_masked_weights(self, step, weights_dict, sparse_val):
        assert np.isnan(sparse_val)
        found = {name: np.array(weight) for name, weight in weights_dict.items()}
        found["w"][:, 0] = sparse_val
        return found if self.returned is None else self.returned


def test_any_sparsifier_s_nans_are_its_mask():
    store = store_of()
    assert prune(store, Own(), ["w", "dense"], 0, {}) == {"w": pytest.approx(1 / 6)}
    assert is_pruned(content_of(store, "w"))[:, 0].all()


@pytest.mark.parametrize("returned", [{"v": np.ones(3)}, {"w": np.ones((6, 4))}])
def test_weights_that_were_not_given_are_refused(returned):
    with pytest.raises(ConfigError, match="must return weights that it was given"):
        prune(store_of(), Own(returned), ["w"], 0, {})
