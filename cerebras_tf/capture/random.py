"""Lowerings of TensorFlow's random ops.

Step and seeds become operands, so that a step can be repeated. If neither the graph nor the op has
a seed, TensorFlow draws one per session. Here one is drawn per graph, from which every op derives
its own, so all captures of a graph draw the same numbers. These seeds are not saved: the next run
of the same script draws others.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from cerebras_tf.capture.elementwise import cast
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers, sizes
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import TensorType, Value
from cerebras_tf.ir.step import Draw
from cerebras_tf.kernels.random import permutation_counters
from cerebras_tf.ops.slicing import cut
from cerebras_tf.tf_compat.internals import FuncGraph

_RENAMED = {
    "RandomStandardNormal": "random_normal",
    "RandomUniform": "random_uniform",
    "TruncatedNormal": "truncated_normal",
}
_SEED_BITS = 63  # seeds are int64, and TensorFlow's are not negative
_drawn_seeds: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def drawn_seed(graph: Any) -> int:
    """The seed drawn for a graph; of a function body, that of the graph that contains it."""
    while isinstance(graph, FuncGraph):
        graph = graph.outer_graph
    return _drawn_seeds.setdefault(graph, secrets.randbits(_SEED_BITS))


def _own_seed(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def _seeds(low: Lowering, op: Operation) -> tuple[int, int]:
    """Key and stream of an op."""
    seed, seed2 = int(op.get_attr("seed")), int(op.get_attr("seed2"))
    if seed == seed2 == 0:
        # The path distinguishes the calls of one function.
        return drawn_seed(op.graph), _own_seed(low.path + op.name)
    return seed, seed2


def _draw(low: Lowering, op: Operation, name: str, limits: Mapping[str, int] = {}) -> Value:
    seed, seed2 = _seeds(low, op)
    shape = tuple(sizes(low, op.inputs[0], "the shape of a random tensor"))
    seeds = low.b.constant(np.array([seed, seed2], np.int64))
    if not op.outputs[0].shape.is_fully_defined():  # TensorFlow counts the numbers drawn
        draw = Draw(seed, seed2, TensorType("int64", shape).size)
        seeds = low.counted_seeds(low.path + op.name, draw) or seeds
    dtype = low.tf_type(op.outputs[0]).dtype
    return low.b.op(name, low.random_step(), seeds, shape=shape, dtype=dtype, **limits)


@lowers(*_RENAMED)
def _random(low: Lowering, op: Operation) -> Sequence[Value]:
    return [_draw(low, op, _RENAMED[op.type])]


@lowers("RandomUniformInt")
def _random_uniform_int(low: Lowering, op: Operation) -> Sequence[Value]:
    (lowest,), (highest,) = (integers(low, tensor, "the range") for tensor in op.inputs[1:])
    return [_draw(low, op, "random_uniform_int", {"low": lowest, "high": highest})]


@lowers("RandomShuffle")
def _random_shuffle(low: Lowering, op: Operation) -> Sequence[Value]:
    """Rows in a random order, without a gradient, as in TensorFlow."""
    (x,) = low.inputs(op)
    size = x.shape[0] if x.type.rank else 1
    if not isinstance(size, int):
        raise UnsupportedOpError(
            f"RandomShuffle: the number of rows must be known. Received: {x!r}. Shuffle in the "
            "input function, or set the static shape."
        )
    if size <= 1:
        return [x]
    seed, seed2 = _seeds(low, op)
    seeds = low.b.constant(np.array([seed, seed2], np.int64))
    if not op.outputs[0].shape.is_fully_defined():
        draw = Draw(seed, seed2, permutation_counters(size))
        seeds = low.counted_seeds(low.path + op.name, draw) or seeds
    attrs = {"size": size, "dtype": "int64"}
    order = low.b.op("random_permutation", low.random_step(), seeds, **attrs)
    rows = low.b.op("gather", x, order, axis=0, batch_dims=0)
    return [low.b.op("stop_gradient", rows)]


# Stateless ops draw from a key and a counter: those of a seed, or of a tf.random.Generator.

_STATELESS = {
    "StatelessRandomNormalV2": "random_normal",
    "StatelessRandomUniformV2": "random_uniform",
    "StatelessTruncatedNormalV2": "truncated_normal",
}
# Philox, and the choice of the device, which is Philox on CPUs.
_ALGORITHMS = (1, 3)


@lowers("StatelessRandomGetAlg")
def _algorithm(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.constant(1, "int32")]


@lowers("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg")
def _key_and_counter(low: Lowering, op: Operation) -> Sequence[Value]:
    """The halves of the counter: zero, and the stream."""
    b = low.b
    seeds = b.op("philox_key", cast(b, low.inputs(op)[0], "int64"))
    seeds = b.op("bitcast", seeds, dtype="uint64")
    counter = b.op("concat", b.constant(np.zeros(1), "uint64"), cut(b, seeds, 0, 1, 1), axis=0)
    return [cut(b, seeds, 0, 0, 1), counter, b.constant(1, "int32")][: len(op.outputs)]


@lowers("Bitcast")
def _bitcast(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.op("bitcast", low.inputs(op)[0], dtype=low.tf_type(op.outputs[0]).dtype)]


def _stateless_draw(
    low: Lowering, op: Operation, name: str, limits: Mapping[str, int] = {}
) -> Value:
    b, (key, counter) = low.b, (low.value(tensor) for tensor in op.inputs[1:3])
    (algorithm,) = integers(low, op.inputs[3], "the algorithm")
    if algorithm not in _ALGORITHMS:
        raise UnsupportedOpError(
            f"{op.type}: the algorithm must be Philox. Received: number {algorithm}. Leave it out."
        )
    parts = [key, cut(b, counter, 0, 1, 1), b.constant(np.zeros(1), key.dtype)]
    seeds = b.op("concat", *parts, cut(b, counter, 0, 0, 1), axis=0)
    seeds = b.op("bitcast", seeds, dtype="int64")
    shape = tuple(sizes(low, op.inputs[0], "the shape of a random tensor"))
    dtype = low.tf_type(op.outputs[0]).dtype
    return b.op(name, b.constant(0, "int64"), seeds, shape=shape, dtype=dtype, **limits)


@lowers(*_STATELESS)
def _stateless(low: Lowering, op: Operation) -> Sequence[Value]:
    return [_stateless_draw(low, op, _STATELESS[op.type])]


@lowers("StatelessRandomUniformIntV2")
def _stateless_int(low: Lowering, op: Operation) -> Sequence[Value]:
    (lowest,), (highest,) = (integers(low, tensor, "the range") for tensor in op.inputs[4:])
    return [_stateless_draw(low, op, "random_uniform_int", {"low": lowest, "high": highest})]
