"""What makes a loss a mean over records, and what keeps it from being one, for parts of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.passes.batch_facts import BatchFacts
from tests.messages import raises
from tests.steps import StepBuilder

RECORDS, MORE, TOKENS, WIDTH = 4, 8, 3, 5
PRODUCT = {"transpose_a": False, "transpose_b": False}


class Model(StepBuilder):
    """Costs of records [B, S] of features x [B, S, H], and weights of them."""

    def __init__(self, records):
        super().__init__()
        self.records = records
        self.x = self.feature("x", records, TOKENS, WIDTH)
        self.weights = self.feature("weights", records, TOKENS)
        self.w = self.variable("w", WIDTH)
        self.costs = self.sum(self.b.op("square", self.b.op("mul", self.x, self.w)), 2)

    def sum(self, x, *axes, op="sum"):
        return self.b.op(op, x, axes=axes or tuple(range(x.type.rank)), keepdims=False)

    def mean(self, x, *axes):
        return self.sum(x, *axes, op="mean")


def facts_of(loss):
    """Facts of the step with a loss of a model, for two numbers of records."""
    models = [Model(records) for records in (RECORDS, MORE)]
    for model in models:
        cost = loss(model)
        model.gradients(cost, ["w"])
        model.done(cost=cost)
    return BatchFacts(*(model.step for model in models), {"x", "weights"})


def mean_of_flat_rows(m):
    flat = m.b.op("reshape", m.x, shape=(m.records * TOKENS, WIDTH))
    rows = m.b.op("softmax", m.b.op("mul", flat, m.w))
    return m.mean(m.sum(rows, 1))


def mean_over_halves(m):
    return m.b.op("mul", m.b.op("add", m.mean(m.costs), m.mean(m.weights)), 0.5)


def regularised(m):
    scale = m.variable("scale")
    decay = m.sum(m.b.op("square", m.w))
    return m.b.op("mul", m.b.op("add", m.mean(m.costs), decay), scale)


def divided(count_of):
    def loss(m):
        return m.b.op("div_no_nan", m.sum(m.costs), float(count_of(m)))

    return loss


def by_rows_that_are_not_folded(m):
    """As tf.cast(tf.shape(x)[0], tf.float32)."""
    count = m.b.op("cast", m.b.constant(np.array(m.records), "int32"), dtype="float32")
    return m.b.op("mul", m.sum(m.costs), m.b.op("div", 0.5, count))


def by_a_sum_of_ones(m):
    return m.b.op("div", m.sum(m.costs), m.sum(m.b.constant(np.ones(m.records, np.float32))))


def in_half_precision(m):
    return m.b.op("cast", m.mean(m.b.op("cast", m.costs, dtype="bfloat16")), dtype="float32")


def with_a_row_for_every_record(m):
    """As a token of classes, a variable that tf.tile repeats."""
    ones = m.b.constant(np.ones((m.records, 1, 1), np.float32))
    return m.mean(m.b.op("concat", m.x, m.b.op("mul", ones, m.w), axis=1))


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
        divided(lambda m: m.records),
        divided(lambda m: m.records * TOKENS),
        by_rows_that_are_not_folded,
        by_a_sum_of_ones,
        in_half_precision,
        with_a_row_for_every_record,
        by_the_count_of_all_parts,
        beside_a_count_of_all_parts(lambda m: m.mean(m.costs)),
        attention,
        dropped,
    ],
)
def test_means_over_records_are_taken(loss):
    facts = facts_of(loss)
    facts.require_mean_losses()
    assert facts.combination("cost") == (0, True)


def own_count(m):
    return m.b.op("div", m.sum(m.b.op("mul", m.costs, m.weights)), m.sum(m.weights))


def normalised_over_the_batch(m):
    return m.mean(m.b.op("mul", m.b.op("sub", m.x, m.mean(m.x, 0, 1)), m.w))


def against_the_others(m):
    rows = m.b.op("reshape", m.x, shape=(m.records, TOKENS * WIDTH))
    scores = m.b.op("matmul", rows, rows, transpose_a=False, transpose_b=True)
    return m.b.op("mul", m.mean(scores), m.mean(m.w))


def by_place_in_the_batch(m):
    return m.mean(m.b.op("mul", m.costs, np.arange(m.records, dtype=np.float32)[:, None]))


def turned(m):
    return m.mean(m.b.op("mul", m.b.op("reverse", m.x, axes=(0,)), m.w))


def of_a_gradient(m):
    (inner,) = m.b.multi("gradient", m.mean(m.costs), m.x, ys=1, dys=(False,), xs=1)
    return m.mean(m.b.op("square", inner))


def without_numbers_of_its_own(m):
    """Random numbers that are the same for every micro-batch, as tf.random.stateless_uniform."""
    step, seeds = (m.b.constant(np.zeros(n, np.int64), "int64") for n in ((), (2,)))
    drawn = m.b.op("random_uniform", step, seeds, shape=(m.records, TOKENS, WIDTH), dtype="float32")
    return m.mean(m.b.op("mul", m.b.op("concat", m.x, drawn, axis=1), m.w))


def ones(m, *shape):
    return m.b.constant(np.ones(shape, np.float32))


def spread_over_records(m):
    """[B, B]: the costs as often as there are records."""
    costs = m.b.op("reshape", m.mean(m.costs, 1), shape=(m.records, 1))
    return m.b.op("mul", costs, ones(m, m.records, m.records))


def root_by_parts(m):
    parts, total = (m.b.op("wafer_sum", m.b.constant(np.float32(n))) for n in (1, m.records))
    share = m.b.op("div", m.b.op("mul", parts, float(m.records)), total)
    return m.b.op("mul", m.b.op("sqrt", m.mean(m.costs)), share)


def over_a_maximum(m, op):
    """A sum over wafers of what is no sum: the mean of maxima is not the maximum."""
    parts = m.b.op("wafer_sum", m.b.constant(np.float32(1)))
    total = m.b.op("wafer_sum", m.sum(m.weights, op=op))
    return m.b.op("div", m.b.op("mul", m.mean(m.costs), parts), total)


def joined_though_counted(m):
    return m.b.op("mul", normalised_over_the_batch(m), m.b.op("wafer_sum", m.sum(m.weights)))


@pytest.mark.parametrize(
    ("loss", "fact"),
    [
        (lambda m: m.sum(m.costs), "a sum over the batch"),
        (lambda m: m.b.op("mul", m.sum(m.costs), 0.5), "a sum over the batch"),
        (divided(lambda m: MORE), "a sum over the batch"),
        (divided(lambda m: RECORDS), "a sum over the batch"),
        (divided(lambda m: m.records - 1), "no sum and no mean"),
        (lambda m: m.b.op("mul", m.mean(m.costs), float(m.records)), "a sum over the batch"),
        (lambda m: m.b.op("mul", m.mean(m.w), float(m.records)), "the number of examples"),
        (without_numbers_of_its_own, "concat"),
        (lambda m: m.sum(m.b.op("mul", m.mean(m.costs), ones(m, m.records))), "no sum and no mean"),
        (lambda m: m.mean(m.sum(spread_over_records(m), 1)), "no sum and no mean"),
        (lambda m: over_a_maximum(m, "max"), "scales otherwise"),
        (root_by_parts, "no sum and no mean"),
        (lambda m: m.b.op("mul", m.b.op("maximum", m.mean(m.costs), 0.5), 2.0), "no sum and no"),
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
    facts = facts_of(loss)
    with raises(UnsupportedOpError, fact):
        facts.require_mean_losses()


@pytest.mark.parametrize(
    ("result", "combination"),
    [
        (lambda m: m.sum(m.costs), (-1, True)),
        (lambda m: m.b.op("sqrt", m.mean(m.costs)), (0, False)),
        (lambda m: m.sum(m.costs, op="max"), (0, False)),
        (lambda m: m.mean(m.w), (0, True)),
        (lambda m: m.b.op("exp", m.b.constant(np.float32(m.records))), (None, False)),
    ],
)
def test_how_results_of_micro_batches_combine(result, combination):
    assert facts_of(result).combination("cost") == combination


def test_a_slice_that_depends_on_the_number_of_records_is_refused():
    def loss(m):
        at = {"starts": (0, m.records // 4, 0), "sizes": (m.records, 1, WIDTH)}
        return m.mean(m.b.op("mul", m.b.op("slice", m.x, **at, strides=(1, 1, 1)), m.w))

    with raises(UnsupportedOpError, "slice must not depend"):
        facts_of(loss)


def test_an_update_that_depends_on_the_number_of_records_is_refused():
    def update(m, rate):
        (gradient,) = m.gradients(m.mean(m.costs), ["w"])
        m.step.updates["w"] = m.b.op("sub", m.w, m.b.op("mul", gradient, rate))
        m.done()
        return m.step

    for rate_of in (lambda m: 0.1, lambda m: 0.1 * m.records):
        steps = [update(m, rate_of(m)) for m in map(Model, (RECORDS, MORE))]
        facts = BatchFacts(*steps, {"x", "weights"})
        facts.require_mean_losses()
    with raises(UnsupportedOpError, "'w'", "number of examples"):
        facts.require_updates()


def test_without_a_second_step_a_multiple_of_the_records_is_taken_for_their_number():
    model = Model(RECORDS)
    model.gradients(divided(lambda m: 2 * RECORDS)(model), ["w"])
    BatchFacts(model.step, None, {"x", "weights"}).require_mean_losses()
