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

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers, sizes
from cerebras_tf.ir import TensorType, Value
from cerebras_tf.ir.step import Draw
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


def _draw(low: Lowering, op: Operation, name: str, limits: Mapping[str, int] = {}) -> Value:
    seed, seed2 = int(op.get_attr("seed")), int(op.get_attr("seed2"))
    if seed == seed2 == 0:
        # The path distinguishes the calls of one function.
        seed, seed2 = drawn_seed(op.graph), _own_seed(low.path + op.name)
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
