"""Views at the edge of an update move to their reader, and nothing that is computed changes."""

from __future__ import annotations

import numpy as np

from cerebras_tf.compiler.order import assign_layers, order_nodes
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir import verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.average_gradients import average_gradients
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.sink_views import sink_views
from cerebras_tf.runtime.collective_plan import sent_bytes
from tests.graphs import run_plain
from tests.steps import StepBuilder, features_of, starting_values

WIDTH, LAYERS = 16, 6


def told_norm(rows=8):
    """Weights divided by the root of their gradients' squares, whose norm is a result.

    The squares are read by updates and, as tf.linalg.global_norm has it, by sums that are stacked.
    """
    s = StepBuilder()
    b = s.b
    x = s.feature("x", rows, WIDTH)
    names = [f"layer_{i}/kernel" for i in range(LAYERS)]
    for name in names:
        x = b.op("tanh", s.matmul(x, s.variable(name, WIDTH, WIDTH)))
    loss = b.op("mean", b.op("square", x), axes=(0, 1), keepdims=False)
    sums = []
    for name, gradient in zip(names, s.gradients(loss, names)):
        slope = b.op("parameter_gradient", gradient, variable=name)
        squares = b.op("square", slope)
        sums.append(b.op("sum", squares, axes=(0, 1), keepdims=False))
        size = b.op("sqrt", b.op("add", squares, 1e-6))
        moved = b.op("mul", b.op("div", slope, size), 0.01)
        s.step.updates[name] = b.op("sub", s.step.variables[name], moved)
    stacked = b.op("concat", *(b.op("reshape", part, shape=(1,)) for part in sums), axis=0)
    return s.done(loss=loss, norm=b.op("sum", stacked, axes=(0,), keepdims=False))


def ordered():
    """The step as it is before layers are dealt out, but that nothing is fused."""
    step = told_norm()
    layers = assign_layers(step)
    differentiate(step.graph)
    average_gradients(step, 2)
    order_nodes(step, layers)
    return step


def outputs(step):
    given = {**features_of(step), **starting_values(step)}
    return run_plain(step.graph, [given[value.name] for value in step.graph.inputs])


def edge_views(step):
    """Views in an update that nothing there reads."""
    users = step.graph.users()
    return [
        node
        for node in step.graph.nodes
        if node.op == "reshape" and node.direction == "update"
        if all(reader.layer != node.layer for reader in users.get(node.output, ()))
    ]


def places(step):
    """Where gradients and means stand, which must not move."""
    kept = ("parameter_gradient", "mean_start", "mean_wait")
    return [(n.op, n.layer, n.direction) for n in step.graph.nodes if n.op in kept]


def test_views_move_to_what_reads_them():
    step = ordered()
    before, kept = outputs(step), places(step)
    assert edge_views(step)
    sink_views(step)
    verify(step.graph, infer, {})
    assert not edge_views(step)
    assert places(step) == kept
    for found, wanted in zip(outputs(step), before):
        assert np.array_equal(found, wanted)
    again = list(step.graph.nodes)
    sink_views(step)
    assert step.graph.nodes == again


def test_layers_whose_norm_is_told_are_updated_by_their_owner():
    program = compile_step(told_norm(), Options(wafers=3))
    weights = sum(program.slots[slot].type.bytes for slot in program.variables.values())
    each = weights // LAYERS
    # To two others: weights twice, but where both passes begin and end; each gradient to one.
    assert sum(sent_bytes(program)) / 2 <= 3 * weights + each
