"""Cuts between layers lie where little is alive, whatever the model."""

from __future__ import annotations

from cerebras_tf.compiler.layers import assign_layers, forward_nodes
from tests.steps import BATCH, INNER, WIDTH, StepBuilder, residual_step


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
