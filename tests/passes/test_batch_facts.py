"""What makes a loss a mean over records, and what keeps it from being one, for parts of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.passes.batch_facts import BatchFacts
from tests.messages import raises
from tests.steps import StepBuilder

RECORDS, TOKENS, WIDTH, PARTS = 4, 3, 5, 8
PRODUCT = {"transpose_a": False, "transpose_b": False}


class Model(StepBuilder):
    """Costs of records [B, S] of features x [B, S, H], and weights of them."""

    def __init__(self):
        super().__init__()
        self.x = self.feature("x", RECORDS, TOKENS, WIDTH)
        self.weights = self.feature("weights", RECORDS, TOKENS)
        self.w = self.variable("w", WIDTH)
        self.costs = self.sum(self.b.op("square", self.b.op("mul", self.x, self.w)), 2)

    def sum(self, x, *axes, op="sum"):
        return self.b.op(op, x, axes=axes or tuple(range(x.type.rank)), keepdims=False)

    def mean(self, x, *axes):
        return self.sum(x, *axes, op="mean")

    def require(self, loss):
        self.gradients(loss, ["w"])
        given = {"x", "weights"}
        BatchFacts(self.step, given, PARTS).require_mean_losses()


def mean_of_flat_rows(m):
    flat = m.b.op("reshape", m.x, shape=(RECORDS * TOKENS, WIDTH))
    rows = m.b.op("softmax", m.b.op("mul", flat, m.w))
    return m.mean(m.sum(rows, 1))


def mean_over_halves(m):
    return m.b.op("mul", m.b.op("add", m.mean(m.costs), m.mean(m.weights)), 0.5)


def regularised(m):
    scale = m.variable("scale")
    decay = m.sum(m.b.op("square", m.w))
    return m.b.op("mul", m.b.op("add", m.mean(m.costs), decay), scale)


def divided(count):
    def loss(m):
        return m.b.op("div_no_nan", m.sum(m.costs), float(count))

    return loss


def by_the_count_of_all_parts(m):
    """As modelzoo has it: a mean of its own count, weighed by that count."""
    count = m.sum(m.weights)
    own = m.b.op("div", m.sum(m.b.op("mul", m.costs, m.weights)), count)
    total, parts = (m.b.op("wafer_sum", x) for x in (count, m.b.constant(np.float32(1))))
    return m.b.op("mul", own, m.b.op("div_no_nan", m.b.op("mul", count, parts), total))


def beside_a_count_of_all_parts(other):
    def loss(m):
        return m.b.op("add", by_the_count_of_all_parts(m), other(m))

    return loss


def attention(m):
    scores = m.b.op("matmul", m.x, m.x, transpose_a=False, transpose_b=True)
    shown = m.b.op("add", scores, np.zeros((1, TOKENS, TOKENS), np.float32))
    return m.mean(m.b.op("mul", m.b.op("matmul", m.b.op("softmax", shown), m.x, **PRODUCT), m.w))


def dropped(m):
    return m.mean(m.b.op("mul", m.dropout(m.x, 3), m.w))


@pytest.mark.parametrize(
    "loss",
    [
        lambda m: m.mean(m.costs),
        lambda m: m.mean(m.mean(m.costs, 0)),
        mean_of_flat_rows,
        mean_over_halves,
        regularised,
        divided(RECORDS),
        divided(RECORDS * TOKENS),
        by_the_count_of_all_parts,
        beside_a_count_of_all_parts(lambda m: m.mean(m.costs)),
        attention,
        dropped,
    ],
)
def test_means_over_records_are_taken(loss):
    model = Model()
    model.require(loss(model))


def own_count(m):
    return m.b.op("div", m.sum(m.b.op("mul", m.costs, m.weights)), m.sum(m.weights))


def normalised_over_the_batch(m):
    return m.mean(m.b.op("mul", m.b.op("sub", m.x, m.mean(m.x, 0, 1)), m.w))


def against_the_others(m):
    rows = m.b.op("reshape", m.x, shape=(RECORDS, TOKENS * WIDTH))
    scores = m.b.op("matmul", rows, rows, transpose_a=False, transpose_b=True)
    return m.b.op("mul", m.mean(scores), m.mean(m.w))


def by_place_in_the_batch(m):
    return m.mean(m.b.op("mul", m.costs, np.arange(RECORDS, dtype=np.float32)[:, None]))


def turned(m):
    return m.mean(m.b.op("mul", m.b.op("reverse", m.x, axes=(0,)), m.w))


def of_a_gradient(m):
    (inner,) = m.b.multi("gradient", m.mean(m.costs), m.x, ys=1, dys=(False,), xs=1)
    return m.mean(m.b.op("square", inner))


def joined_though_counted(m):
    return m.b.op("mul", normalised_over_the_batch(m), m.b.op("wafer_sum", m.sum(m.weights)))


@pytest.mark.parametrize(
    ("loss", "fact"),
    [
        (lambda m: m.sum(m.costs), "a sum over the batch"),
        (lambda m: m.b.op("mul", m.sum(m.costs), 0.5), "a sum over the batch"),
        (divided(RECORDS * PARTS), "a sum over the batch"),
        (lambda m: m.b.op("add", m.sum(m.costs), m.sum(m.w)), "no sum and no mean"),
        (lambda m: m.b.op("sqrt", m.mean(m.costs)), "no sum and no mean"),
        (lambda m: m.b.op("mul", m.mean(m.costs), m.mean(m.weights)), "no sum and no mean"),
        (own_count, "no sum and no mean"),
        (lambda m: m.costs, "one number per record"),
        (normalised_over_the_batch, "sub"),
        (against_the_others, "matmul"),
        (by_place_in_the_batch, "mul"),
        (turned, "reverse"),
        (of_a_gradient, "gradient"),
        (joined_though_counted, "sub"),
        (beside_a_count_of_all_parts(lambda m: m.sum(m.costs)), "no sum and no mean"),
        (
            beside_a_count_of_all_parts(lambda m: m.b.op("sqrt", m.mean(m.costs))),
            "no sum and no mean",
        ),
        (lambda m: m.b.op("sqrt", by_the_count_of_all_parts(m)), "no sum and no mean"),
    ],
)
def test_what_is_no_mean_over_records_is_refused(loss, fact):
    model = Model()
    with raises(UnsupportedOpError, fact):
        model.require(loss(model))
