"""Lowerings of TensorFlow's random ops.

Seeds become attributes and the step an operand, so that a step can be repeated. Where neither the
graph nor the op has a seed, TensorFlow draws one in every session; here one is drawn for a graph,
and every op makes its own of it. All captures of a graph then draw the same numbers. The seeds are
deliberately kept nowhere else: the next run of the same script draws others.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

# Private API of TF 2.15: the class of function bodies has no public name.
from tensorflow.python.framework.func_graph import FuncGraph

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers, sizes
from cerebras_tf.ir import Value

_RENAMED = {
    "RandomStandardNormal": "random_normal",
    "RandomUniform": "random_uniform",
    "TruncatedNormal": "truncated_normal",
}
_SEED_BITS = 63  # seeds are int64, and TensorFlow's are not negative
_drawn_seeds: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def _drawn_seed(graph: Any) -> int:
    """The seed drawn for the graph that a model_fn built, whichever function body is given."""
    while isinstance(graph, FuncGraph):
        graph = graph.outer_graph
    return _drawn_seeds.setdefault(graph, secrets.randbits(_SEED_BITS))


def _own_seed(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def _attributes(low: Lowering, op: Operation) -> dict[str, Any]:
    seed, seed2 = int(op.get_attr("seed")), int(op.get_attr("seed2"))
    if seed == seed2 == 0:
        # The path tells the calls of one function from each other.
        seed, seed2 = _drawn_seed(op.graph), _own_seed(low.path + op.name)
    return {
        "shape": tuple(sizes(low, op.inputs[0], "the shape of a random tensor")),
        "seed": seed,
        "seed2": seed2,
        "dtype": low.tf_type(op.outputs[0]).dtype,
    }


@lowers(*_RENAMED)
def _random(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.op(_RENAMED[op.type], low.random_step(), **_attributes(low, op))]


@lowers("RandomUniformInt")
def _random_uniform_int(low: Lowering, op: Operation) -> Sequence[Value]:
    """Integers from low up to but not including high."""
    (lowest,), (highest,) = (integers(low, tensor, "the range") for tensor in op.inputs[1:])
    attrs = dict(_attributes(low, op), low=lowest, high=highest)
    return [low.b.op("random_uniform_int", low.random_step(), **attrs)]
