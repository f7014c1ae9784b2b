"""The lowering table: how each TensorFlow op type becomes IR.

The files of this package register the rules. The protocols list what a rule may use.
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
        gathers: (variable's name, row numbers, rows) of every unconditional read of rows.
        path: names of the calls and conditionals around a function body; "" outside of them.
        condition: of v1 conditionals around the call of a function body; None if there are none.
    """

    b: Builder
    state: VariableState
    gathers: list[tuple[str, Value, Value]]
    path: str
    condition: Optional[Value]

    def value(self, tensor: Tensor) -> Value:
        """IR value of a tensor that was lowered before, here or in an enclosing lowering."""

    def inputs(self, op: Operation) -> list[Value]:
        """IR values of all data inputs of an operation, in order."""

    def static(self, tensor: Tensor, what: str) -> Array:
        """The tensor's constant content; raises UnsupportedOpError if unknown; `what` names it."""

    def maybe_static(self, tensor: Tensor) -> Optional[Array]:
        """The tensor's constant content, or None."""

    def tf_type(self, tensor: Tensor) -> TensorType:
        """dtype and static shape of a tensor in TensorFlow."""

    def segments(self, ids: Tensor) -> Optional[Value]:
        """Number of segments with these sorted ids, which the session has counted; or None."""

    def counted_seeds(self, name: str, draw: Draw) -> Optional[Value]:
        """int64 [3]: the seeds of a random op and how many numbers it has drawn; None in branches.

        Args:
            name: of the op and the calls around it.
            draw: its seeds, and how many numbers it draws now.
        """

    def random_step(self, for_all: bool = False) -> Value:
        """int64 scalar: how often every random op has drawn before.

        Args:
            for_all: all wafers draw the same numbers, as updates of replicated variables need;
                otherwise each wafer draws its own.
        """


class GraphLowering(Lowering, Protocol):
    """What rules for operations with function bodies or gradients use in addition.

    Attributes:
        custom_gradients: prepared gradients of tf.custom_gradient functions, by their op.
        lowerable: decides which operations have an IR form.
    """

    custom_gradients: dict[Operation, Optional[CustomGradient]]
    lowerable: Lowerable
    step: StepGraph

    @property
    def differentiates(self) -> bool:
        """Whether recorded gradients are lowered instead of TensorFlow's backward graph."""

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor has been lowered, here or in an enclosing lowering."""

    def bind(self, tensor: Tensor, value: Value) -> None:
        """Sets the IR value of a tensor."""

    def lower_all(self, roots: Sequence[Operation]) -> None:
        """Lowers operations and all they depend on, in the order they were built.

        Raises:
            UnsupportedOpError: operations have no IR form; the message lists all of them.
        """

    def child(self, b: Builder, state: VariableState) -> GraphLowering:
        """A lowering of a function body that shares features and gradients with this one."""

    def inside(self, step: StepGraph, b: Builder, state: VariableState) -> GraphLowering:
        """A lowering of operations of this graph into another one, as `nested`.

        It has variables of its own.
        """

    @property
    def captured(self) -> dict[Value, Value]:
        """In a nested lowering: the enclosing graph's values, by the inputs that they became."""

    def nested(self, step: StepGraph) -> GraphLowering:
        """A lowering into another graph; values of this one become its inputs."""

    def pair(self, tensor: Tensor) -> tuple[Value, Value]:
        """Real and imaginary part of a complex tensor that was lowered before."""

    def part(self, which: int) -> GraphLowering:
        """This lowering, in which complex tensors are their real (0) or imaginary (1) part."""

    def given(self, values: list[Value]) -> GraphLowering:
        """This lowering, in which these are the inputs of every operation."""

    def outer_value(self, captured: Value) -> Value:
        """In a nested lowering: the enclosing graph's value of an input."""


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
                    f"lowering table: an op type must have one rule. Received: two of {op_type}."
                )
            LOWERINGS[op_type] = rule
        return rule

    return add
