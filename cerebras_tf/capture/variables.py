"""Finds the variables of a graph that are on the wafer.

These are all global variables but the global step, which stays in the session like local variables
(metrics).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Protocol

import tensorflow as tf

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import TensorType, Variable


class _Creator(Protocol):
    def __call__(self, **arguments: object) -> tf.Variable: ...


def tensor_type(tensor: Tensor) -> TensorType:
    """dtype and static shape of a tensor; raises GraphError for strings and other dtypes."""
    dims = tensor.shape.as_list() if tensor.shape.rank is not None else []
    return TensorType(tensor.dtype.base_dtype.name, tuple(dims))


@contextlib.contextmanager
def resource_variables() -> Iterator[None]:
    """Within: all new variables are resource variables, even with `use_resource=False`.

    Their reads and assignments are separate operations. Checkpoints do not change.
    """

    def create(next_creator: _Creator, **arguments: object) -> tf.Variable:
        return next_creator(**{**arguments, "use_resource": True})

    scope = tf.compat.v1.get_variable_scope()
    with tf.compat.v1.variable_scope(scope, use_resource=True), tf.variable_creator_scope(create):
        yield


def managed_variables(graph: tf.Graph, model_start: int = 0) -> dict[Operation, tf.Variable]:
    """TensorFlow variables on the wafer, by the op that makes their handle.

    Args:
        model_start: number of operations that existed before the call; variables among them belong
            to the input function and stay in the session.

    Raises:
        UnsupportedOpError: a variable is not a resource variable.
    """
    step = tf.compat.v1.train.get_global_step(graph)
    inputs = set(graph.get_operations()[:model_start])
    found = {}
    for variable in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
        # Private API of TensorFlow: the parts of a partitioned variable.
        parts: Iterable[tf.Variable] = getattr(variable, "_variable_list", None) or [variable]
        for part in parts:
            if part is step or part.dtype.base_dtype == tf.string or part.op in inputs:
                continue
            if getattr(part, "handle", None) is None:
                raise UnsupportedOpError(
                    f"variable {part.op.name}: must be a resource variable. Received: "
                    "use_resource=False outside of model_fn. Remove use_resource."
                )
            found[part.handle.op] = part
    return found


def variable_spec(variable: tf.Variable) -> Variable:
    """Name as in checkpoints, type and trainability of a TensorFlow variable."""
    shape = tuple(variable.shape.as_list())
    kind = TensorType(variable.dtype.base_dtype.name, shape)
    return Variable(variable.op.name, kind, bool(variable.trainable))
