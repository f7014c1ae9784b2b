"""Parts that run one after another update by the mean of their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import verify
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import infer
from cerebras_tf.passes.split_micro_batches import (
    COUNTS,
    FIRST,
    LAST,
    MEAN,
    MIDDLE,
    OF_LAST,
    SUM,
    UNKNOWN,
    split_micro_batches,
)
from tests.graphs import run_plain
from tests.messages import raises
from tests.steps import StepBuilder

ROWS, PARTS = 2, 3


def made(kind, sparse=False, **more):
    """(the step of a part, what becomes of its results, its sums over wafers)."""
    s = StepBuilder()
    b, x, w = s.b, s.feature("x", ROWS, 4), s.variable("w", 4)
    count = b.op("wafer_sum", b.op("sum", x, axes=(0, 1), keepdims=False))
    costs = b.op("div", b.op("mul", x, w), count)
    if sparse:
        numbers = b.constant(np.array([1, 1], np.int32), "int32")
        rows = b.op("sum", costs, axes=(1,), keepdims=False)
        rows, numbers = b.multi(GRADIENT, rows, numbers, variable="w")
        gradient = b.op("unsorted_segment_sum", rows, numbers, b.constant(np.array(4), "int32"))
    else:
        value = b.op("sum", costs, axes=(0,), keepdims=False)
        gradient = b.op(GRADIENT, value, variable="w")
    s.step.updates["w"] = b.op("sub", w, gradient)
    mean = b.op("sum", costs, axes=(0, 1), keepdims=False)
    results = {
        "costs": costs,
        "cost": mean,
        "gradient": gradient,
        "both": b.op("add", costs, gradient),
    }
    step = s.done(**results)
    fates, sums = split_micro_batches(step, kind, PARTS, {"x"})
    verify(step.graph, infer)
    return step, fates, sums


def values(step, **given):
    """Updates and results of a step, by name."""
    names = {
        value: name for group in (step.features, step.variables) for name, value in group.items()
    }
    arrays = [given[names[value]] for value in step.graph.inputs]
    found = run_plain(step.graph, arrays)
    return {name: found[at] for (_, name), at in step.labels.items()}


@pytest.mark.parametrize("sparse", [False, True])
def test_the_last_part_updates_by_the_mean(sparse):
    random = np.random.default_rng(1)
    x = random.standard_normal((PARTS, ROWS, 4)).astype(np.float32)
    w = random.standard_normal(4).astype(np.float32)
    (count_name,) = made(COUNTS)[2]
    count = sum(values(made(COUNTS)[0], x=part, w=w)[count_name] for part in x)
    np.testing.assert_allclose(count, x.sum(), rtol=1e-5)
    kept = np.full(4, np.nan, np.float32)  # the first part overwrites it
    for kind, part in zip((FIRST, MIDDLE, LAST), x):
        step, fates, _ = made(kind, sparse)
        given = {"x": part, "w": w, f"w/{SUM}": kept, count_name: count}
        found = values(step, **given)
        kept = found.get(f"w/{SUM}", kept)
        assert set(step.updates) == ({"w"} if kind == LAST else {f"w/{SUM}"})
    costs = x * w / x.sum()
    expected = costs.sum((0, 1)) / PARTS
    if sparse:
        expected = np.array([0, costs.sum() / PARTS, 0, 0], np.float32)
    np.testing.assert_allclose(found["w"], w - expected, rtol=1e-4, atol=1e-5)
    assert fates == {"costs": UNKNOWN, "cost": MEAN, "gradient": OF_LAST, "both": UNKNOWN}


def test_parts_before_the_last_keep_no_results_of_the_update():
    assert set(made(FIRST)[0].results) == {"cost"}
    assert made(FIRST)[0].blank == {f"w/{SUM}"} and not made(MIDDLE)[0].blank


def test_what_reads_the_batch_beside_gradients_is_refused():
    s = StepBuilder()
    x, _ = s.feature("x", ROWS, 4), s.variable("mean", 4)
    s.step.updates["mean"] = s.b.op("sum", x, axes=(0,), keepdims=False)
    with raises(UnsupportedOpError, "'mean'"):
        split_micro_batches(s.done(), LAST, PARTS, {"x"})
