"""Errors of checkpoints that callers of tf.estimator also catch as TensorFlow's own.

On the host a restore raises InvalidArgumentError where shapes differ and NotFoundError where a
variable is missing; what catches these there catches the wafer's as well.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from cerebras_tf.errors import CheckpointError


class CheckpointMismatchError(CheckpointError, tf.errors.InvalidArgumentError):
    """A checkpoint holds variables of other shapes, or variables the model lacks.

    Args:
        *arguments: the message alone, or (node_def, op, message) as TensorFlow raises it anew.
    """

    def __init__(self, *arguments: Any) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, arguments[-1])


class CheckpointLackError(CheckpointError, tf.errors.NotFoundError):
    """A checkpoint lacks variables of the model.

    Args:
        *arguments: the message alone, or (node_def, op, message) as TensorFlow raises it anew.
    """

    def __init__(self, *arguments: Any) -> None:
        tf.errors.NotFoundError.__init__(self, None, None, arguments[-1])
