"""Finds the variables of a graph and says which of them the wafer owns.

The wafer owns every global variable but the global step; local variables (metrics) and the global
step stay in the session. This file deliberately reads no values.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.ir import TensorType, Variable


def tensor_type(tensor: Tensor) -> TensorType:
    """dtype and static shape of a TensorFlow tensor; raises GraphError for strings and the like."""
    dims = tensor.shape.as_list() if tensor.shape.rank is not None else []
    return TensorType(tensor.dtype.base_dtype.name, tuple(dims))


def managed_variables(graph: tf.Graph) -> dict[Operation, tf.Variable]:
    """TensorFlow variables the wafer owns, by the op that makes their handle.

    Args:
        graph: a graph whose model_fn has run.
    """
    step = tf.compat.v1.train.get_global_step(graph)
    found = {}
    for variable in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
        parts: Iterable[tf.Variable] = getattr(variable, "_variable_list", None) or [variable]
        for part in parts:
            if part is not step and part.dtype.base_dtype != tf.string:
                found[part.handle.op] = part
    return found


def variable_spec(variable: tf.Variable) -> Variable:
    """Name as in checkpoints, type and trainability of a TensorFlow variable."""
    shape = tuple(variable.shape.as_list())
    kind = TensorType(variable.dtype.base_dtype.name, shape)
    return Variable(variable.op.name, kind, bool(variable.trainable))
