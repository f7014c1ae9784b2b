"""Parity of the attention op with attention composed of TensorFlow's ops."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from cerebras_tf.capture.capture import RANDOM_STEP, Capture
from cerebras_tf.ir import Graph, TensorType, verify
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, infer
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.fuse_attention import fuse_attention
from cerebras_tf.passes.simplify import simplify
from tests.graphs import run_plain
from tests.parity.harness import assert_close, check_parity, normal, oracle_session
from tests.tolerances import TOLERANCES

pytestmark = pytest.mark.tf
# Letters: B batch, S query length, T key length, A heads, D head width.


def _attention(query, key, value, bias, scale, causal):
    scores = tf.einsum("bsad,btad->bast", query, key) * scale
    if bias is not None:
        scores += bias
    if causal:
        length = tf.shape(scores)[-1]
        mask = tf.linalg.band_part(tf.ones([length, length]), -1, 0)
        scores = tf.where(mask > 0, scores, tf.constant(-np.inf))
    return tf.einsum("bast,btad->bsad", tf.nn.softmax(scores), value)


def _tensorflow(arrays, dout, scale, causal):
    """Output and gradients by query, key and value."""
    with tf.Graph().as_default(), oracle_session() as session:
        operands = [tf.constant(array) for array in arrays]
        bias = operands[3] if len(operands) > 3 else None
        out = _attention(*operands[:3], bias, scale, causal)
        return session.run([out, *tf.gradients(out, operands[:3], tf.constant(dout))])


def _wafer(arrays, dout, scale, causal):
    """The same through the op, its gradient rule and the plain kernels."""
    graph = Graph("attention")
    values = [
        graph.add_input(f"x{i}", TensorType("float32", a.shape)) for i, a in enumerate(arrays)
    ]
    dy = graph.add_input("dy", TensorType("float32", dout.shape))
    b = Builder(graph, evaluate)
    out, _ = b.multi("attention", *values, scale=scale, causal=causal)
    grads = b.multi("gradient", out, dy, *values[:3], ys=1, dys=(True,), xs=3)
    graph.outputs = [out, *grads]
    differentiate(graph)
    verify(graph, infer)
    return run_plain(graph, [*arrays, dout])


CASES = [
    pytest.param((2, 5, 5, 3, 4), None, False, id="full"),
    pytest.param((2, 5, 5, 3, 4), None, True, id="causal"),
    pytest.param((2, 5, 7, 3, 4), None, False, id="cross"),
    pytest.param((2, 5, 7, 3, 4), (2, 1, 1, 7), False, id="padding_bias"),
    pytest.param((2, 5, 5, 3, 4), (1, 3, 5, 5), True, id="position_bias_causal"),
    pytest.param((1, 1, 1, 1, 1), None, True, id="single"),
    pytest.param((1, 70, 70, 2, 8), None, True, id="longer"),
]


@pytest.mark.parametrize(("sizes", "bias", "causal"), CASES)
def test_attention_agrees_with_tensorflows_composition(sizes, bias, causal):
    batch, queries, keys, heads, width = sizes
    arrays = [normal(batch, queries, heads, width)]
    arrays += [normal(batch, keys, heads, width, seed=seed) for seed in (1, 2)]
    if bias is not None:
        arrays.append(normal(*bias, seed=3))
    dout = normal(batch, queries, heads, width, seed=4)
    expected = _tensorflow(arrays, dout, width**-0.5, causal)
    actual = _wafer(arrays, dout, width**-0.5, causal)
    assert_close(actual[0], expected[0], TOLERANCES["attention"], "out")
    for ours, theirs in zip(actual[1:], expected[1:]):
        assert_close(ours, theirs, TOLERANCES["gradient"], "gradient")


def test_attention_with_a_masking_bias_ignores_masked_keys():
    arrays = [normal(2, 4, 3, 4), normal(2, 6, 3, 4, seed=1), normal(2, 6, 3, 4, seed=2)]
    bias = np.zeros((2, 1, 1, 6), np.float32)
    bias[..., 4:] = -1e9
    masked, _ = evaluate("attention", [*arrays, bias], {"scale": 0.5, "causal": False})
    short = [arrays[0], arrays[1][:, :4], arrays[2][:, :4]]
    cut, _ = evaluate("attention", short, {"scale": 0.5, "causal": False})
    assert_close(masked, cut, TOLERANCES["attention"], "out")


@pytest.mark.parametrize("causal", [False, True])
def test_composed_attention_agrees_with_tensorflow_through_capture(causal):
    arrays = [normal(2, 5, 3, 4), normal(2, 5, 3, 4, seed=1), normal(2, 5, 3, 4, seed=2)]
    check_parity(lambda x: _attention(*x, None, 0.5, causal), arrays, "attention")


def _dropped_attention(query, key, value):
    """[B, A, S, D], as models write it."""
    scores = 0.5 * tf.matmul(query, key, transpose_b=True)
    weights = tf.nn.dropout(tf.nn.softmax(scores), rate=0.3, seed=11)
    return tf.matmul(weights, value)


def test_fused_dropout_follows_tensorflows_over_two_steps():
    """Seeded, forward and gradient: the wafer draws the numbers again in the backward pass."""
    arrays = [normal(2, 3, 7, 4, seed=seed) for seed in range(3)]
    dout = normal(2, 3, 7, 4, seed=4)
    with tf.Graph().as_default():
        places = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
        out = _dropped_attention(*places)
        wanted = [out, *tf.gradients(out, places, tf.constant(dout))]
        with oracle_session() as session:
            theirs = [session.run(wanted, dict(zip(places, arrays))) for _ in range(2)]
        types = {x: TensorType(x.dtype.name, tuple(x.shape.as_list())) for x in places}
        step = Capture({}, types).run({"out": out})
    graph = step.graph
    simplify(graph)
    fuse_attention(graph, set())
    assert "attention" in [node.op for node in graph.nodes]
    (ours,) = graph.outputs
    dy = graph.add_input("dy", ours.type)
    xs = [step.features[x.name] for x in places]
    b = Builder(graph, evaluate)
    graph.outputs += b.multi("gradient", ours, dy, *xs, ys=1, dys=(True,), xs=3)
    differentiate(graph)
    verify(graph, infer)
    given = {"dy": dout, **{x.name: array for x, array in zip(places, arrays)}}
    for number, expected in enumerate(theirs):
        given[RANDOM_STEP] = np.array(number, np.int64)
        actual = run_plain(graph, [given[value.name] for value in graph.inputs])
        assert_close(actual[0], expected[0], TOLERANCES["attention"], f"step {number}: out")
        for mine, other in zip(actual[1:], expected[1:]):
            assert_close(mine, other, TOLERANCES["gradient"], f"step {number}: gradient")
    assert not np.allclose(theirs[0][0], theirs[1][0])
