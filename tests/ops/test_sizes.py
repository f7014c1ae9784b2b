"""Ops under symbolic sizes: types and numbers are those of the same graph built for numbers."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError, UnknownSizeError
from cerebras_tf.ir import Dim, Graph, TensorType, bind_graph, parse_type, verify
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, infer, lookup
from cerebras_tf.ops.shape import broadcast_as, diagonal, reshape
from cerebras_tf.ops.sizes import counted, counts, known_count
from cerebras_tf.ops.slicing import cut
from cerebras_tf.passes.differentiate import differentiate
from tests.graphs import graph_of, random_inputs, run_plain
from tests.messages import raises

S = Dim.symbol("S", 8)
SIZES = ({"S": 1, "P": 1}, {"S": 4, "P": 3}, {"S": 8, "P": 5})
X, Y, IDS = "float32[2,S<=8,4]", "float32[2,P<=5,4]", "int32[2,P<=5]"
LEAST = {"axes": (1,), "keepdims": False}


def _dense(b, x):
    rows = reshape(b, x, (None, 4))
    product = b.op("matmul", rows, rows, transpose_a=True, transpose_b=False)
    return b.op("matmul", x, product, transpose_a=False, transpose_b=False)


def _scores(b, x, y):
    scores = b.op("matmul", x, y, transpose_a=False, transpose_b=True)
    return b.op("matmul", b.op("softmax", scores), y, transpose_a=False, transpose_b=False)


def _pieces(b, x):
    length = x.shape[1]
    tail = cut(b, x, 1, 1, length - 1)
    return b.op("concat", tail, cut(b, x, 1, length - 1, 1), x, axis=1)


def _backwards(b, x):
    sizes, strides = x.shape, (1, -1, 1)
    return b.op("slice", x, starts=(0, x.shape[1] - 1, 0), sizes=sizes, strides=strides)


def _picked(b, x, ids):
    zero = b.op("mul", ids, b.constant(0, "int32"))
    return b.op("square", b.op("gather", x, zero, axis=1, batch_dims=1))


def _cross_entropy(b, x):
    rows = reshape(b, x, (None, 4))
    labels = b.op("argmax", rows, axis=1, dtype="int32")
    return b.multi("sparse_softmax_xent", rows, labels)[0]


def _normed(b, x):
    gamma = b.constant(np.arange(4.0), "float32")
    return b.multi("layer_norm", x, gamma, gamma, epsilon=1e-5)[0]


def _attention(b, x):
    heads = reshape(b, x, (*x.shape[:2], 2, 2))
    return b.multi("attention", heads, heads, heads, scale=0.7, causal=True)[0]


def _convolved(b, x):
    image = b.op("reshape", x, shape=(2, x.shape[1], 2, 2))
    filters = b.constant(np.arange(24.0).reshape(3, 2, 2, 2), "float32")
    geometry = {"strides": (1, 1), "padding": ((1, 1), (0, 1)), "dilations": (1, 1)}
    return b.op("conv2d", image, filters, **geometry)


PROGRAMS = [
    ("dense", _dense, (X,)),
    ("scores", _scores, (X, Y)),
    ("pieces", _pieces, (X,)),
    ("backwards", _backwards, (X,)),
    ("picked", _picked, (X, IDS)),
    ("cross_entropy", _cross_entropy, (X,)),
    ("normed", _normed, (X,)),
    ("attention", _attention, (X,)),
    ("convolved", _convolved, (X,)),
    ("mean", lambda b, x: b.op("mean", b.op("square", x), **LEAST), (X,)),
    ("max", lambda b, x: b.op("max", x, **LEAST), (X,)),
    ("prod", lambda b, x: b.op("prod", x, **LEAST), (X,)),
    ("cumsum", lambda b, x: b.op("cumsum", x, axis=1, exclusive=False, reverse=False), (X,)),
    ("tile", lambda b, x: b.op("tile", x, multiples=(1, 2, 3)), (X,)),
    ("pad", lambda b, x: b.op("pad", x, paddings=(
        (0, 0), (8 - x.shape[1], 1), (0, 0)), value=0), (X,)),
    ("broadcast", lambda b, x: b.op("mul", x, cut(b, x, 1, 0, 1)), (X,)),
    ("broadcast_as", lambda b, x: b.op("mul", x, broadcast_as(b, cut(b, x, 1, 0, 1), x)), (X,)),
    ("squares", lambda b, x: b.op("sum_of_squares", b.op("square", x)), (X,)),
    ("top_k", lambda b, x: b.multi("top_k", x, k=2, dtype="int32")[0], (X,)),
    ("transpose", lambda b, x: b.op("transpose", x, permutation=(1, 2, 0)), (X,)),
    ("diag_part", lambda b, x: b.op("diag_part", x), ("float32[2,S<=8,S<=8]",)),
    ("band_part", lambda b, x: b.op("band_part", x, lower=1, upper=0), ("float32[S<=8,S<=8]",)),
    ("one_hot", lambda b, x, ids: b.op("matmul", b.op("one_hot", ids, depth=x.shape[1], axis=-1,
        dtype="float32", on_value=1.0, off_value=0.0), x, transpose_a=False, transpose_b=False),
        (X, IDS)),
    ("count", lambda b, x: b.op("mul", x, counts(b, x.shape[1], "float32")), (X,)),
    ("iota", lambda b, x: b.op("mul", x, counted(b, 4, 2, "float32", x.shape[1])), (X,)),
]  # fmt: skip


def _with_gradients(build):
    """The outputs of `build`, and the gradients of their sum by the floating inputs."""

    def whole(b, *inputs):
        y = build(b, *inputs)
        xs = [x for x in inputs if x.type.is_floating]
        return [y, *b.multi("gradient", y, *xs, ys=1, dys=(False,), xs=len(xs))]

    return whole


def _differentiated(build, types):
    graph = graph_of(_with_gradients(build), *types)
    differentiate(graph)
    verify(graph, infer)
    return graph


def _concrete(text, sizes):
    return str(parse_type(text).at(sizes))


@pytest.mark.parametrize(("name", "build", "types"), PROGRAMS, ids=[row[0] for row in PROGRAMS])
def test_a_program_of_symbols_is_that_of_numbers_once_bound(name, build, types):
    symbolic = _differentiated(build, types)
    for sizes in SIZES:
        bound = bind_graph(symbolic, sizes)
        verify(bound, infer)
        plain = _differentiated(build, [_concrete(text, sizes) for text in types])
        assert [v.type for v in bound.outputs] == [v.type for v in plain.outputs]
        arrays = random_inputs(plain)
        for ours, theirs in zip(run_plain(bound, arrays), run_plain(plain, arrays)):
            np.testing.assert_array_equal(ours, theirs)


def _builder() -> Builder:
    return Builder(Graph())


def test_sizes_are_scalars_and_vectors_of_numbers_known_with_the_batch():
    b = _builder()
    b.graph.outputs = [counts(b, 2 * S, "float32"), counts(b, [S, 3], "int32")]
    assert [v.type for v in b.graph.outputs] == [
        TensorType("float32", ()),
        TensorType("int32", (2,)),
    ]
    scalar, vector = run_plain(bind_graph(b.graph, {"S": 5}), [])
    assert scalar == 10.0
    assert vector.tolist() == [5, 3]


def test_iota_counts_in_steps():
    b = _builder()
    b.graph.outputs = [counted(b, S, 2, "int64", S - 1)]
    assert b.graph.outputs[0].type == TensorType("int64", (S,))
    (numbers,) = run_plain(bind_graph(b.graph, {"S": 3}), [])
    assert numbers.tolist() == [2, 4, 6]


def test_numbers_make_constants():
    b = _builder()
    assert counts(b, 3, "float32").constant == np.float32(3)
    assert counts(b, (3, 4), "int32").constant.tolist() == [3, 4]
    assert counted(b, 3, 2, "int32", 1).constant.tolist() == [1, 3, 5]
    assert counts(b, (), "int32").constant.shape == (0,)


def test_known_count_reads_constants_and_sizes_only():
    b = _builder()
    assert known_count(counts(b, 3, "int32")) == 3
    assert known_count(counts(b, S, "int32")) == S
    assert known_count(b.graph.add_input("x", TensorType("int32", ()))) is None


def test_kernels_refuse_symbols_that_are_not_bound():
    for op, attrs in (("sizes", {"dims": (S,)}), ("iota", {"size": S, "start": 0, "step": 1})):
        with pytest.raises(UnknownSizeError):
            evaluate(op, [], {**attrs, "dtype": "int32"})


def test_iota_of_a_size_that_may_be_negative_is_refused():
    with pytest.raises(GraphError):
        counted(_builder(), S - 2, 1, "int32")


@pytest.mark.parametrize(
    ("starts", "sizes", "strides"),
    [((0,), (9,), (1,)), ((1,), (S,), (1,)), ((2,), (S - 2,), (1,)), ((0,), (S,), (-1,))],
)
def test_slice_must_stay_inside_for_every_size(starts, sizes, strides):
    graph = Graph()
    x = graph.add_input("x", TensorType("float32", (S,)))
    with raises(GraphError, "slice"):
        Builder(graph).op("slice", x, starts=starts, sizes=sizes, strides=strides)


def test_slice_may_take_a_symbolic_part_of_a_longer_axis():
    graph = Graph()
    table = graph.add_input("table", TensorType("float32", (8, 4)))
    assert cut(Builder(graph), table, 0, 0, S).shape == (S, 4)
    with raises(GraphError, "slice"):
        cut(Builder(graph), table, 0, 0, S + 1)


def test_broadcasting_takes_equal_symbols_and_ones_only():
    b = _builder()
    x, one, other, number = (
        b.graph.add_input("x", TensorType("float32", (dim,)))
        for dim in (S, 1, Dim.symbol("T", 8), 5)
    )
    assert b.op("add", x, x).shape == b.op("add", x, one).shape == (S,)
    for value in (other, number):
        with pytest.raises(GraphError):
            b.op("add", x, value)


def test_reshape_must_hold_the_elements_of_every_size():
    b = _builder()
    x = b.graph.add_input("x", TensorType("float32", (8, S, 4)))
    assert reshape(b, x, (None, 4)).node.attrs["shape"] == (8 * S, 4)
    assert b.op("reshape", x, shape=(-1, S)).shape == (32, S)
    for shape in ((-1, 5), (8, 5, 4), (8, S + 1, 4)):
        with pytest.raises(GraphError):
            b.op("reshape", x, shape=shape)


def test_diagonals_of_symbolic_matrices_are_those_of_numbers():
    b = _builder()
    b.graph.outputs = [diagonal(b, S, 3)]
    (square,) = run_plain(bind_graph(b.graph, {"S": 4}), [])
    np.testing.assert_array_equal(square, np.eye(4, 3, dtype=bool))


def test_a_window_that_fits_no_whole_number_of_times_is_refused():
    graph = Graph()
    x = graph.add_input("x", TensorType("float32", (2, S, 4, 1)))
    attrs = {"window": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0))}
    with pytest.raises(GraphError):
        Builder(graph).op("avg_pool", x, **attrs)


def test_flops_of_symbolic_nodes_are_those_of_their_sizes():
    graph = graph_of(_scores, X, Y)
    costs = [lookup(node.op).flops(node) for node in graph.nodes]
    bound = bind_graph(graph, {"S": 3, "P": 2})
    assert [cost.at({"S": 3, "P": 2}) for cost in costs] == [
        lookup(node.op).flops(node) for node in bound.nodes
    ]
