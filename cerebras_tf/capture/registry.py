"""The lowering table: how each TensorFlow op type becomes IR.

Entries are registered by the family files. What they may ask of the capture around them are the
protocols here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Optional, Protocol, TypeVar

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.state import VariableState
from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Array, StepGraph, TensorType, Value
from cerebras_tf.ir.step import Draw
from cerebras_tf.ops.builder import Builder

if TYPE_CHECKING:
    from cerebras_tf.capture.custom_gradients import CustomGradient
    from cerebras_tf.capture.lowerable import Lowerable


class Lowering(Protocol):
    """What a rule may use.

    Attributes:
        b: builder of the IR graph; emits ops with inferred types.
        state: current values of the variables.
        gathers: (variable's name, row numbers, rows) of every read of rows that always happens.
        path: names of the calls and conditionals around a function body, "" outside of them.
        condition: of v1 conditionals around the call of a function body; None where there are none.
    """

    b: Builder
    state: VariableState
    gathers: list[tuple[str, Value, Value]]
    path: str
    condition: Optional[Value]

    def value(self, tensor: Tensor) -> Value:
        """IR value of a tensor that was lowered before."""

    def inputs(self, op: Operation) -> list[Value]:
        """IR values of all data inputs of an operation, in order."""

    def static(self, tensor: Tensor, what: str) -> Array:
        """The tensor's constant content; UnsupportedOpError naming op and `what` where unknown."""

    def maybe_static(self, tensor: Tensor) -> Optional[Array]:
        """The tensor's constant content, or None."""

    def tf_type(self, tensor: Tensor) -> TensorType:
        """dtype and static shape TensorFlow knows for a tensor."""

    def counted_seeds(self, name: str, draw: Draw) -> Optional[Value]:
        """int64 [3], seeds of a random op and how many numbers it has made; None in branches."""

    def random_step(self, for_all: bool = False) -> Value:
        """int64 scalar: how often every random op has drawn before.

        Args:
            for_all: equal on all wafers, as what acts on variables that each keeps must be; else
                each draws numbers of its own.
        """


class GraphLowering(Lowering, Protocol):
    """What rules for operations with graphs of their own use besides: bodies, gradients.

    Attributes:
        custom_gradients: prepared gradients of tf.custom_gradient functions, by their op.
        lowerable: says what has an IR form here.
        step: the step graph being built.
    """

    custom_gradients: dict[Operation, Optional[CustomGradient]]
    lowerable: Lowerable
    step: StepGraph

    @property
    def differentiates(self) -> bool:
        """Whether recorded gradients are taken, and not TensorFlow's own backward graph."""

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor has been lowered, here or around here."""

    def bind(self, tensor: Tensor, value: Value) -> None:
        """Says which IR value stands for a tensor."""

    def lower_all(self, roots: Sequence[Operation]) -> None:
        """Lowers operations and all they depend on, in the order they were built."""

    def child(self, b: Builder, state: VariableState) -> GraphLowering:
        """A lowering of a function body that shares features and gradients with this one."""

    def nested(self, step: StepGraph) -> GraphLowering:
        """A lowering into another graph, which values from around here enter as inputs."""

    def outer_value(self, entered: Value) -> Value:
        """In a nested lowering: the value around it that an input of its graph stands for."""


# fn(lowering, operation) -> IR values of the operation's outputs, in order.
LoweringRule = Callable[[GraphLowering, Operation], Sequence[Value]]
Rule = TypeVar("Rule", bound=LoweringRule)
LOWERINGS: dict[str, LoweringRule] = {}


def lowers(*op_types: str) -> Callable[[Rule], Rule]:
    """Registers a lowering for TensorFlow op types (CamelCase names)."""

    def add(rule: Rule) -> Rule:
        for op_type in op_types:
            if op_type in LOWERINGS:
                raise GraphError(
                    f"lowering table: an op type must have one rule. Received: two of {op_type}. "
                    "Remove one."
                )
            LOWERINGS[op_type] = rule
        return rule

    return add
