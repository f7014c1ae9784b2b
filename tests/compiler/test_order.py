"""Any graph gets a valid order: forward, backward in reverse, updates as early as they may."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.layers import assign_layers
from cerebras_tf.compiler.order import order_nodes
from cerebras_tf.ir import verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.simplify import simplify
from tests.graphs import run_plain
from tests.steps import StepBuilder, residual_step


def ordered(step):
    """The step in order, and its number of layers."""
    layers = assign_layers(step)
    differentiate(step.graph)
    simplify(step.graph)
    order_nodes(step, layers)
    verify(step.graph, infer)
    return layers


def runs(step):
    """(direction, layer) of neighbouring nodes, each once."""
    found = []
    for node in step.graph.nodes:
        if node.op != "constant" and found[-1:] != [(node.direction, node.layer)]:
            found.append((node.direction, node.layer))
    return found


def test_forward_comes_first_and_backward_goes_in_reverse():
    step = residual_step(4)
    layers = ordered(step)
    found = runs(step)
    assert [layer for way, layer in found if way == "forward"] == list(range(layers))
    assert [layer for way, layer in found if way == "backward"] == list(reversed(range(layers)))
    assert found[:layers] == [("forward", layer) for layer in range(layers)]


def test_updates_go_right_behind_the_gradients_they_need():
    step = residual_step(4)
    layers = ordered(step)
    expected = [("forward", layer) for layer in range(layers)]
    for layer in reversed(range(layers)):
        expected += [("backward", layer), ("update", layer)]
    assert runs(step) == expected


def test_with_a_global_norm_every_update_waits_for_all_gradients():
    step = residual_step(4, clip=True)
    ordered(step)
    found = runs(step)
    first = next(i for i, (way, _) in enumerate(found) if way == "update")
    assert all(way != "backward" for way, _ in found[first:])
    assert {way for way, _ in found[:first]} == {"forward", "backward"}


def test_slots_are_updated_with_the_variable_they_belong_to():
    step = residual_step(3)
    ordered(step)
    layer_of = {name: value.node.layer for name, value in step.updates.items()}
    for name, layer in layer_of.items():
        assert layer == layer_of[name.replace("/Momentum", "")]


def test_weight_decay_waits_for_the_gradient_of_its_variable():
    """What needs only the weights could run at once; it belongs with the rest of the update."""
    s = StepBuilder()
    x, w = s.feature("x", 4, 4), s.variable("w", 4, 4)
    loss = s.b.op("sum", s.b.op("square", s.matmul(x, w)), axes=(0, 1), keepdims=False)
    decay = s.b.op("mul", w, 0.01)
    (found,) = s.gradients(loss, ["w"])
    s.step.updates["w"] = s.b.op("sub", s.b.op("sub", w, decay), found)
    step = s.done(loss=loss)
    ordered(step)
    assert decay.node.direction == "update"


def random_step(seed):
    """A random graph on random weights, some used twice; updates mix gradients and scalars."""
    random = np.random.default_rng(seed)
    s = StepBuilder()
    pool = [s.feature("x", 4, 4)]
    names = [f"w{i}" for i in range(int(random.integers(1, 7)))]
    weights = [s.variable(name, 4, 4) for name in names]
    for weight in [*weights, *(weights[i] for i in random.integers(0, len(weights), 2))]:
        made = s.b.op("tanh", s.matmul(pool[int(random.integers(0, len(pool)))], weight))
        other = pool[int(random.integers(0, len(pool)))]
        pool.append(s.b.op(str(random.choice(["add", "mul"])), made, other))
    total = pool[-1]
    for value in pool[1:-1]:
        total = s.b.op("add", total, value)
    loss = s.b.op("mean", s.b.op("square", total), axes=(0, 1), keepdims=False)
    s.momentum(loss, names, clip=bool(random.integers(0, 2)))
    if random.integers(0, 2):  # a scalar of the step reaches one update only
        first = s.step.updates["w0"]
        s.step.updates["w0"] = s.b.op("mul", first, s.b.op("reciprocal", s.b.op("add", loss, 2.0)))
    return s.done(loss=loss)


@pytest.mark.parametrize("seed", range(40))
def test_random_steps_stay_valid_and_keep_their_outputs(seed):
    step, same = random_step(seed), random_step(seed)
    random = np.random.default_rng(seed)
    arrays = [random.standard_normal(v.shape).astype(np.float32) for v in step.graph.inputs]
    differentiate(same.graph)
    wanted = run_plain(same.graph, arrays)
    ordered(step)  # verifies that nothing comes before what it needs
    for ours, theirs in zip(run_plain(step.graph, arrays), wanted):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_equal_groups_stand_together(seed):
    step = random_step(seed)
    layers = assign_layers(step)
    differentiate(step.graph)
    keys = order_nodes(step, layers)
    found = [keys[node] for node in step.graph.nodes]
    assert found == sorted(found)
