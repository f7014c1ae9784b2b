"""Any graph gets a valid order: forward, backward in reverse, updates as early as they may."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.order import assign_layers, forward_nodes, order_nodes
from cerebras_tf.ir import verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.simplify import simplify
from tests.graphs import run_plain
from tests.steps import BATCH, INNER, WIDTH, StepBuilder, residual_step


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


def crossing(step):
    """Values made in one layer and read in a later one, by the layer that makes them."""
    found: dict[int, set] = {}
    for node in step.graph.nodes:
        for value in node.inputs:
            if node.layer >= 0 and value.node is not None and value.node.layer < node.layer:
                found.setdefault(value.node.layer, set()).add(value)
    return found


def test_a_residual_network_is_cut_at_the_residual_stream():
    step = residual_step(6)
    layers = assign_layers(step)
    assert layers >= 6
    for values in crossing(step).values():
        assert [value.shape for value in values] == [(BATCH, WIDTH)]


def test_the_weights_of_a_block_come_together():
    step = residual_step(4)
    assign_layers(step)
    home = {}
    for node in forward_nodes(step):
        for value in node.inputs:
            name = step.variable_of(value)
            if name:
                home[name] = node.layer
    blocks = [{home[n] for n in home if n.startswith(f"block_{i}/")} for i in range(4)]
    assert all(len(block) == 1 for block in blocks)
    assert len(set.union(*blocks)) == 4


def test_layers_rise_along_the_forward_pass_and_start_at_zero():
    step = residual_step(5)
    layers = assign_layers(step)
    found = [node.layer for node in forward_nodes(step)]
    assert found == sorted(found)
    assert set(found) == set(range(layers))


def test_only_forward_nodes_get_a_layer():
    step = residual_step(3, clip=True)
    assign_layers(step)
    forward = set(forward_nodes(step))
    for node in step.graph.nodes:
        assert (node.layer >= 0) == (node in forward)


def test_a_constant_rate_and_optimizer_state_are_not_forward():
    step = residual_step(2)
    for node in forward_nodes(step):
        assert node.op != "gradient"
        assert all("Momentum" not in (step.variable_of(v) or "") for v in node.inputs)


def encoder_decoder():
    """An encoder whose result every decoder block reads."""
    s = StepBuilder()
    x, y = s.feature("x", BATCH, WIDTH), s.feature("y", BATCH, WIDTH)
    encoded, stream = x, y

    def block(folder, value, *others):
        inner = s.matmul(value, s.variable(f"{folder}/up", WIDTH, INNER))
        for other in others:
            inner = s.b.op("add", inner, s.matmul(other, s.variable(f"{folder}/mem", WIDTH, INNER)))
        inner = s.b.op("relu", inner)
        return s.b.op("add", value, s.matmul(inner, s.variable(f"{folder}/down", INNER, WIDTH)))

    for number in range(4):
        encoded = block(f"encoder_{number}", encoded)
    for number in range(4):
        stream = block(f"decoder_{number}", stream, encoded)
    loss = s.b.op("mean", s.b.op("square", stream), axes=(0, 1), keepdims=False)
    s.momentum(loss, list(s.step.variables), clip=False)
    return s.done(loss=loss)


def test_an_encoder_decoder_is_cut_where_only_streams_and_the_encoding_go_on():
    step = encoder_decoder()
    layers = assign_layers(step)
    folders: dict[int, set] = {}
    for node in forward_nodes(step):
        names = [step.variable_of(value) for value in node.inputs]
        folders.setdefault(node.layer, set()).update(n.split("/")[0] for n in names if n)
    assert len(folders) == layers
    # Where the decoder starts twice as much is alive: two of its blocks may stay together.
    assert all(len(names) <= 2 for names in folders.values())
    for values in crossing(step).values():
        assert all(value.shape == (BATCH, WIDTH) for value in values)


def test_a_loss_scale_ends_no_layer_and_joins_none():
    s = StepBuilder()
    stream = s.feature("x", BATCH, WIDTH)
    for number in range(6):
        inner = s.matmul(stream, s.variable(f"block_{number}/kernel", WIDTH, WIDTH))
        stream = s.b.op("add", stream, s.b.op("relu", inner))
    names = list(s.step.variables)
    loss = s.b.op("mean", s.b.op("square", stream), axes=(0, 1), keepdims=False)
    scaled = s.b.op("mul", loss, s.variable("loss_scale"))
    s.momentum(scaled, names, clip=False)
    step = s.done(loss=loss)
    assert assign_layers(step) == 6
    for values in crossing(step).values():
        assert [value.shape for value in values] == [(BATCH, WIDTH)]


def test_without_weights_there_is_one_layer():
    s = StepBuilder()
    step = s.done(y=s.b.op("exp", s.b.op("neg", s.feature("x", 4))))
    assert assign_layers(step) == 1
    assert [node.layer for node in step.graph.nodes] == [0, 0]


def test_without_a_gradient_the_results_are_the_end():
    step = residual_step(4, train=False)
    layers = assign_layers(step)
    assert layers >= 4
    assert all(node.layer >= 0 for node in step.graph.nodes if node.op != "constant")
