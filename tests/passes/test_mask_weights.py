"""Pruned entries stay zero through an update, and are no part of a gradient or of its norm."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir import verify
from cerebras_tf.ir.text import print_graph
from cerebras_tf.memoryx.sparsity import is_pruned
from cerebras_tf.ops import infer
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.mask_weights import mask_weights
from tests.graphs import ops_of
from tests.machines import run_program
from tests.steps import StepBuilder, expected, features_of, starting_values

MODES = {
    "streaming": Options(sparse=("w",)),
    "pipelined": Options(streaming=False, sparse=("w",)),
    "unfused": Options(fuse=False, sparse=("w",)),
    "staging": Options(staging=True, sparse=("w",)),
    "bfloat16": Options(precision="bfloat16", sparse=("w",)),
    "emulate": Options(precision="emulate", sparse=("w",)),
}


def network(mask=None, clip=True):
    """tanh(x w) v, trained by momentum; with a mask, x (w * mask), which is the oracle."""
    s = StepBuilder()
    x, w, v = s.feature("x", 8, 6), s.variable("w", 6, 5), s.variable("v", 5, 3)
    used = w if mask is None else s.b.op("mul", w, s.b.constant(mask, "float32"))
    y = s.matmul(s.b.op("tanh", s.matmul(x, used)), v)
    loss = s.b.op("sum", s.b.op("square", y), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w", "v"], clip)
    return s.done(loss=loss)


def masked_start(step):
    """Values of variables, half of w pruned, and where it is not."""
    values = starting_values(step)
    mask = np.random.default_rng(5).random((6, 5)) < 0.5
    values["w"][~mask] = -0.0
    return values, mask.astype(np.float32)


@pytest.mark.parametrize("clip", [True, False], ids=["clipped", "free"])
@pytest.mark.parametrize("mode", MODES)
def test_a_masked_step_is_that_of_a_model_that_multiplies_by_the_mask(mode, clip):
    step = network(clip=clip)
    values, mask = masked_start(step)
    features = [features_of(step, seed) for seed in range(3)]
    loss, state = expected(network(mask, clip), values, features)
    program = compile_step(step, MODES[mode])
    found, after = run_program(program, step, values, features)
    close = {"rtol": 2e-5, "atol": 1e-6}
    np.testing.assert_allclose(found["loss"], loss["loss"], **close)
    for name, content in state.items():
        np.testing.assert_allclose(after[name], content, **close, err_msg=name)
    np.testing.assert_array_equal(is_pruned(after["w"]), mask == 0)
    assert not after["w/Momentum"][mask == 0].any()


def test_a_weight_that_becomes_zero_by_chance_is_not_pruned():
    s = StepBuilder()
    w = s.variable("w", 4)
    s.step.updates["w"] = s.b.op("mul", w, s.feature("x", 4))
    step = s.done()
    features = [{"x": np.float32([0, -0.0, 1, 0])}, {"x": np.ones(4, np.float32)}]
    values = {"w": np.float32([3, 3, -0.0, -0.0])}
    _, after = run_program(compile_step(step, Options(sparse=("w",))), step, values, features)
    np.testing.assert_array_equal(is_pruned(after["w"]), [False, False, True, True])


def test_a_second_run_changes_nothing_and_other_variables_stay_as_they_are():
    step = network()
    differentiate(step.graph)
    before = ops_of(step.graph).count("masked_like")
    mask_weights(step, ("w", "no variable of this step"))
    verify(step.graph, infer)
    text = print_graph(step.graph)
    assert ops_of(step.graph).count("masked_like") - before == 2
    mask_weights(step, ("w",))
    assert print_graph(step.graph) == text


def test_evaluation_has_nothing_to_mask():
    s = StepBuilder()
    y = s.matmul(s.feature("x", 8, 6), s.variable("w", 6, 5))
    step = s.done(y=y)
    mask_weights(step, ("w",))
    assert ops_of(step.graph) == ["matmul"]
