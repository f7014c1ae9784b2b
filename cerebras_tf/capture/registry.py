"""The lowering table: how each TensorFlow op type becomes IR.

Entries are registered by the family files. What a lowering may ask of its surroundings is the
`Lowering` protocol; this file deliberately imports no TensorFlow, so contract tests can read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol

import numpy as np

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import TensorType, Value
from cerebras_tf.ops.builder import Builder


class Lowering(Protocol):
    """What a lowering function may use.

    Attributes:
        b: builder of the IR graph; emits ops with inferred types and folds constants.
    """

    b: Builder

    def value(self, tensor: Any) -> Value:
        """IR value of a TensorFlow tensor that was lowered before."""

    def inputs(self, op: Any) -> list[Value]:
        """IR values of all data inputs of a TensorFlow operation, in order."""

    def static(self, tensor: Any, what: str) -> np.ndarray:
        """The tensor's constant content; UnsupportedOpError naming op and `what` where unknown."""

    def maybe_static(self, tensor: Any) -> Optional[np.ndarray]:
        """The tensor's constant content, or None."""

    def tf_type(self, tensor: Any) -> TensorType:
        """dtype and static shape TensorFlow knows for a tensor."""


# fn(lowering, tf operation) -> IR values of the operation's outputs, in order.
LoweringRule = Callable[[Any, Any], Sequence[Value]]
LOWERINGS: dict[str, LoweringRule] = {}


def lowers(*op_types: str) -> Callable[[LoweringRule], LoweringRule]:
    """Registers a lowering for TensorFlow op types (CamelCase names)."""

    def add(rule: LoweringRule) -> LoweringRule:
        for op_type in op_types:
            if op_type in LOWERINGS:
                raise GraphError(
                    f"lowering table: one rule an op type. Received {op_type} twice. Remove one."
                )
            LOWERINGS[op_type] = rule
        return rule

    return add
