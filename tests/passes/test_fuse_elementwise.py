"""Elementwise nodes are joined where the schedule and the shapes allow it, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import Builder
from cerebras_tf.passes.fuse_elementwise import fuse_elementwise
from tests.graphs import check_pass, graph_of

F4 = "float32[4]"


def anywhere(graph):
    fuse_elementwise(graph, lambda node: 0)


def by_layer(graph):
    fuse_elementwise(graph, lambda node: (node.direction, node.layer))


def test_a_chain_becomes_one_node():
    def build(b, x, y):
        return b.op("tanh", b.op("add", b.op("mul", x, 2.0), y))

    graph = graph_of(build, F4, F4)
    assert check_pass(graph, anywhere) == ["fused_elementwise"]
    assert graph.nodes[-1].inputs == graph.inputs


def test_scalar_constants_move_into_the_body():
    graph = graph_of(lambda b, x: b.op("add", b.op("mul", x, 2.0), np.ones(4, np.float32)), F4)
    check_pass(graph, anywhere)
    (node,) = [node for node in graph.nodes if node.op == "fused_elementwise"]
    assert [value.constant is not None for value in node.inputs] == [False, True]
    assert sum(inner.op == "constant" for inner in node.attrs["body"].nodes) == 1


def test_values_used_elsewhere_become_outputs():
    def build(b, x):
        inner = b.op("exp", x)
        total = b.op("sum", inner, axes=(0,), keepdims=False)
        return b.op("neg", inner), total

    graph = graph_of(build, F4)
    assert check_pass(graph, anywhere) == ["fused_elementwise", "sum"]
    assert len(graph.nodes[0].outputs) == 2


def test_other_layers_stay_apart():
    graph = graph_of(lambda b, x: b.op("neg", b.op("exp", x)), F4)
    graph.nodes[0].layer, graph.nodes[1].layer = 0, 1
    assert check_pass(graph, by_layer) == ["fused_elementwise"] * 2
    assert [node.layer for node in graph.nodes] == [0, 1]


def test_other_directions_stay_apart():
    graph = graph_of(lambda b, x: b.op("neg", b.op("exp", x)), F4)
    graph.nodes[1].direction = "backward"
    assert check_pass(graph, by_layer) == ["fused_elementwise"] * 2
    assert [node.direction for node in graph.nodes] == ["forward", "backward"]


def test_other_shapes_stay_apart():
    graph = graph_of(lambda b, x, y: b.op("add", b.op("exp", x), y), F4, "float32[3,4]")
    assert check_pass(graph, anywhere) == ["fused_elementwise"] * 2


def test_nothing_is_joined_across_another_node():
    """exp and add around a sum: joined, the sum would need what needs the sum."""

    def build(b, x):
        inner = b.op("exp", x)
        total = b.op("sum", inner, axes=(0,), keepdims=True)
        return b.op("add", inner, b.op("broadcast_to", total, shape=(4,)))

    ops = check_pass(graph_of(build, F4), anywhere)
    assert ops == ["fused_elementwise", "sum", "broadcast_to", "fused_elementwise"]


def test_nodes_of_unknown_size_stay():
    graph = graph_of(lambda b, x: b.op("neg", b.op("exp", x)), "float32[?]")
    assert check_pass(graph, anywhere) == ["exp", "neg"]


def test_casts_and_comparisons_join():
    def build(b, x):
        return b.op("cast", b.op("greater", x, 0.0), dtype="float32")

    assert check_pass(graph_of(build, F4), anywhere) == ["fused_elementwise"]


OPS = ("add", "mul", "sub", "maximum", "tanh", "neg", "square", "sigmoid")


def random_graph(seed):
    """Elementwise ops on [3] and [2, 3], sums over rows between them, layers that rise."""
    random = np.random.default_rng(seed)

    def build(b, *xs):
        pool = list(xs)
        for number in range(int(random.integers(4, 24))):
            b.layer = number // 6
            x, y = (pool[i] for i in random.integers(0, len(pool), 2))
            op = str(random.choice([*OPS, "sum"]))
            if op == "sum":
                wide = next(v for v in reversed(pool) if v.type.rank == 2)
                pool.append(b.op("mean", wide, axes=(0,), keepdims=False))
            else:
                pool.append(b.op(op, x, y) if op in OPS[:4] else b.op(op, x))
        return [pool[i] for i in random.integers(2, len(pool), 3)]

    graph = graph_of(build, "float32[2,3]", "float32[3]")
    graph.prune()
    return graph


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_keep_their_outputs_and_their_layers_in_order(seed):
    graph = random_graph(seed)
    before = len(graph.nodes)
    check_pass(graph, by_layer, seed)
    layers = [node.layer for node in graph.nodes if node.op != "constant"]
    assert layers == sorted(layers)
    assert len(graph.nodes) <= before


def test_what_an_update_needs_of_its_slot_is_joined_behind_the_norm_it_waits_for():
    """slot * 0.9 + gradient * clip: the product of the slot could run long before the norm."""

    def build(b, slot, gradient):
        kept = b.op("mul", slot, 0.9)
        norm = b.op("sum", b.op("square", gradient), axes=(0, 1), keepdims=False)
        return b.op("add", kept, b.op("mul", gradient, b.op("rsqrt", norm)))

    graph = graph_of(build, "float32[6,7]", "float32[6,7]")
    found = check_pass(graph, lambda g: fuse_elementwise(g, lambda node: 0))
    assert found.count("fused_elementwise") == 3  # the square, the scalar, and all of the rest


def test_a_factor_that_is_ready_early_joins_what_it_is_added_to():
    """decay * m is ready at once, the rest of the sum waits for a scalar of another loop."""
    graph = Graph()
    b = Builder(graph)
    m, g = (graph.add_input(name, TensorType("float32", (40, 50))) for name in "mg")
    total = graph.add_input("total", TensorType("float32", ()))
    factor = b.op("sqrt", b.op("mul", total, 2.0))
    graph.outputs = [b.op("add", b.op("mul", m, 0.9), b.op("mul", g, factor))]
    fuse_elementwise(graph, lambda node: 0)
    fused = [node for node in graph.nodes if node.op == "fused_elementwise"]
    assert sorted(node.output.shape for node in fused) == [(), (40, 50)]


def test_what_others_read_early_stays_where_it_is():
    graph = Graph()
    b = Builder(graph)
    x = graph.add_input("x", TensorType("float32", (4, 5)))
    total = graph.add_input("total", TensorType("float32", ()))
    y = b.op("mul", b.op("exp", x), 0.5)
    early = b.op("sum", y, axes=(0, 1), keepdims=False)
    late = b.op("mul", y, b.op("sqrt", b.op("mul", total, early)))
    graph.outputs = [late]
    fuse_elementwise(graph, lambda node: 0)
    makers = [n for n in graph.nodes if n.op == "fused_elementwise" and n.output.shape == (4, 5)]
    assert [[i.op for i in n.attrs["body"].nodes] for n in makers][0] == ["exp", "constant", "mul"]


def test_an_activations_gradient_is_one_node_behind_the_product_it_waits_for():
    """dy (1 - t^2) (1 + 3 x^2), t = tanh(x + x^3): what needs x alone could run before."""

    def build(b, x, above, weight):
        square = b.op("square", x)
        bent = b.op("tanh", b.op("add", x, b.op("mul", square, x)))
        dy = b.op("matmul", b.op("neg", above), weight, transpose_a=False, transpose_b=False)
        slope = b.op("mul", dy, b.op("sub", 1.0, b.op("square", bent)))
        return b.op("mul", slope, b.op("add", b.op("mul", square, 3.0), 1.0))

    graph = graph_of(build, "float32[6,7]", "float32[6,5]", "float32[5,7]")
    found = check_pass(graph, lambda g: fuse_elementwise(g, lambda node: 0))
    assert found.count("fused_elementwise") == 2  # what the product reads, and the gradient
    assert "float32[6,7], float32[6,7], " not in found


def test_a_cluster_that_others_read_early_is_raised_in_no_part():
    """Where only some of what it makes is read behind, all of it stays."""
    graph = Graph()
    b = Builder(graph)
    x = graph.add_input("x", TensorType("float32", (4, 5)))
    inner = b.op("exp", x)
    early = b.op("sum", b.op("neg", inner), axes=(0, 1), keepdims=False)
    graph.outputs = [b.op("mul", b.op("tanh", inner), b.op("sqrt", early))]
    fuse_elementwise(graph, lambda node: 0)
    ops = [[i.op for i in n.attrs["body"].nodes] for n in graph.nodes if n.op != "sum"]
    assert sorted(map(sorted, ops)) == [["exp", "neg", "tanh"], ["mul"], ["sqrt"]]
