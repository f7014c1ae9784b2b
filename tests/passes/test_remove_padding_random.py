"""Random graphs: what the proof accepts has the padded numbers, whatever stands in padding."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import PaddingError
from cerebras_tf.passes.remove_padding import remove_padding
from tests.messages import raises
from tests.token_steps import BATCH, LENGTH, VOCABULARY, WIDTH, TokenStep, arrays_of, computed

COUNT = 200
# A position of the decoder whose tokens count in every sequence, where a graph reads there.
READ = 4


class Wanderer:
    """Builds a graph by choosing, again and again, what to do with a value [B, S, H]."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.s = TokenStep()
        self.b = self.s.b
        self.mask = self.s.tokens("mask")
        self.kept = self.b.op("sub", 1.0, self.b.op("cast", self.mask, dtype="float32"))
        self.wide = self.b.op("reshape", self.kept, shape=(BATCH, LENGTH, 1))
        self.bias = self.s.mask_bias(self.mask)
        self.constant = np.random.default_rng(seed).standard_normal((LENGTH, WIDTH)).astype("f")

    def build(self):
        """A step whose loss is the sum of what a few choices led to."""
        x = self.s.embed(self.s.tokens())
        for _ in range(self.random.integers(2, 7)):
            x = self.choose(self.between)(x)
        x = self.s.attend(x, self.bias)
        for _ in range(self.random.integers(0, 3)):
            x = self.choose(self.between)(x)
        loss = self.s.total(self.choose(self.ends)(x))
        if self.random.random() < 0.3:
            loss = self.b.op("add", loss, self.s.total(self.choose(self.ends)(x)))
        if self.random.random() < 0.4:
            loss = self.b.op("add", loss, self.s.total(self.crosswise(x)))
        return self.s.learn(self.b.op("tanh", self.b.op("mul", loss, 0.01)))

    def crosswise(self, memory):
        """What tokens that see no others of their own lead to: those that count are a list."""
        b, s = self.b, self.s
        y = s.attend(s.embed(s.tokens("target_ids"), "target"), self.bias, memory)
        y = self.choose([s.feed, lambda x: s.dropout(x, 3), lambda x: b.op("softmax", x)])(y)
        weights = b.op("reshape", s.tokens("scattered", "float32"), shape=(BATCH, LENGTH, 1))
        losses = b.op("mul", y, weights)

        def picked(x):
            sizes = (BATCH, 1, WIDTH)
            return b.op("slice", x, starts=(0, READ, 0), sizes=sizes, strides=(1, 1, 1))

        def listed(x):
            at = s.feature("target_at", BATCH, 2, dtype="int32")
            return b.op("gather", x, at, axis=1, batch_dims=1)

        more = self.choose([None, picked, listed])
        self.reads = more is not None
        if more is None:
            return losses
        return b.op("add", s.total(losses), s.total(b.op("mul", more(y), 0.5)))

    def arrays(self, garbage, outside=False):
        """Features and variables of the step that was built.

        Args:
            garbage: what stands at padded places differs with it.
            outside: whether a position lies outside of its sequence.
        """
        made = arrays_of(self.s.step, garbage=garbage)
        if "scattered" in made:
            random, other = np.random.default_rng(7), np.random.default_rng(garbage)
            weights = random.integers(0, 2, (BATCH, LENGTH)).astype("f")
            weights[:, 0] = weights[1] = 0
            weights[:, READ] = self.reads
            ids = [r.integers(0, VOCABULARY, weights.shape, "int32") for r in (random, other)]
            made["scattered"], made["target_ids"] = weights, np.where(weights, *ids)
        if "target_at" in made:
            made["target_at"] = np.full((BATCH, 2), READ, "int32")
            made["target_at"][1, 0] = READ - LENGTH if outside else READ
        return made

    def choose(self, among):
        return among[self.random.integers(len(among))]

    @property
    def between(self):
        """Functions from [B, S, H] to [B, S, H]."""
        b, s = self.b, self.s
        heads = (BATCH, LENGTH, 2, WIDTH // 2)

        def swapped(x):
            y = b.op("transpose", b.op("reshape", x, shape=heads), permutation=(0, 2, 1, 3))
            y = b.op("tanh", b.op("mul", y, 0.5))
            return b.op("reshape", b.op("transpose", y, permutation=(0, 2, 1, 3)), shape=x.shape)

        def by_positions(x):
            return b.op("add", x, b.constant(self.constant))

        def with_mean(x):
            return b.op("sub", x, b.op("mean", x, axes=(1,), keepdims=True))

        def with_masked_mean(x):
            total = b.op("sum", b.op("mul", x, self.wide), axes=(1,), keepdims=True)
            return b.op("sub", x, b.op("mul", total, 0.1))

        def halves(x):
            sizes, strides = (BATCH, LENGTH, WIDTH // 2), (1, 1, 1)
            left = b.op("slice", x, starts=(0, 0, 0), sizes=sizes, strides=strides)
            right = b.op("slice", x, starts=(0, 0, WIDTH // 2), sizes=sizes, strides=strides)
            return b.op("concat", right, left, axis=2)

        def shifted(x):
            sizes, strides = (BATCH, LENGTH - 1, WIDTH), (1, 1, 1)
            rest = b.op("slice", x, starts=(0, 1, 0), sizes=sizes, strides=strides)
            return b.op("pad", rest, paddings=((0, 0), (0, 1), (0, 0)), value=0)

        return [
            swapped,
            by_positions,
            with_masked_mean,
            halves,
            s.feed,
            lambda x: b.op("mul", x, self.wide),
            lambda x: b.op("select", b.op("greater", self.wide, 0.5), x, b.constant(0.25)),
            lambda x: b.op("add", x, 1.0),
            lambda x: b.op("softmax", x),
            lambda x: s.attend(x, self.bias, seed=int(self.random.integers(9))),
            lambda x: s.dropout(x, int(self.random.integers(9))),
            *self.choose(([], [with_mean], [shifted], [lambda x: b.op("cumsum", x, **_BACKWARDS)])),
        ]

    @property
    def ends(self):
        """Functions from [B, S, H] to something without tokens, or to what may hold them."""
        b, s = self.b, self.s

        def listed(x):
            at = b.op(
                "mul", s.step.features.get("at") or s.feature("at", BATCH, 2, dtype="int32"), 0
            )
            return b.op("gather", x, at, axis=1, batch_dims=1)

        return [
            s.first,
            listed,
            lambda x: b.op("mul", x, self.wide),
            lambda x: b.op("sum", b.op("mul", x, self.wide), axes=(1,), keepdims=False),
            lambda x: b.op("mean", b.op("mul", x, self.wide), axes=(0, 1), keepdims=False),
            lambda x: b.op("mul", b.op("sum", x, axes=(2,), keepdims=False), self.kept),
            lambda x: x,
            lambda x: b.op("max", x, axes=(1,), keepdims=False),
        ]


_BACKWARDS = {"axis": 1, "exclusive": False, "reverse": True}


def built(seed):
    """A graph and its maker."""
    maker = Wanderer(seed)
    return maker.build(), maker


@pytest.fixture(scope="module")
def outcomes():
    """For every graph: whether it was accepted, and the results with and without padding."""
    found = []
    for seed in range(COUNT):
        step, maker = built(seed)
        given = [maker.arrays(garbage) for garbage in (1, 2)]
        if remove_padding(step) is not None:
            found.append(None)
            continue
        try:
            first = computed(step, given[0])
        except PaddingError:
            found.append(None)
            continue
        again, _ = built(seed)
        assert remove_padding(again) is None
        found.append((first, computed(again, given[1]), computed(built(seed)[0], given[0])))
    return found


def test_what_is_accepted_has_the_padded_numbers(outcomes):
    for seed, outcome in enumerate(outcomes):
        if outcome is not None:
            found, _, wanted = outcome
            largest = max(np.abs(value).max() for value in wanted.values())
            for name, value in wanted.items():
                where = f"graph {seed}: {name}"
                np.testing.assert_allclose(found[name], value, 1e-4, 1e-5 * largest, err_msg=where)


def test_what_stands_in_padding_changes_no_bit(outcomes):
    for seed, outcome in enumerate(outcomes):
        if outcome is not None:
            for name, value in outcome[0].items():
                np.testing.assert_array_equal(outcome[1][name], value, err_msg=f"graph {seed}")


def test_both_outcomes_are_common(outcomes):
    accepted = sum(outcome is not None for outcome in outcomes)
    assert 40 <= accepted <= COUNT - 40, accepted


def test_a_position_outside_of_its_sequence_is_found(outcomes):
    found = 0
    for seed, outcome in enumerate(outcomes):
        step, maker = built(seed)
        if outcome is None or "target_at" not in step.features:
            continue
        arrays = maker.arrays(1, outside=True)
        assert remove_padding(step) is None
        with raises(PaddingError, "padding"):
            computed(step, arrays)
        found += 1
    assert found >= 5
