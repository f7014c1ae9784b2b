"""TensorFlow's operations and tensors, as far as capture reads them.

TensorFlow has no types that mypy can read; its classes have the attributes of these protocols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Protocol


class DType(Protocol):
    """Element type; `name` as the IR has it."""

    name: str
    base_dtype: DType


class StaticShape(Protocol):
    """Dimensions known when the graph is built; the rank is None if it is unknown."""

    rank: Optional[int]

    def as_list(self) -> list[Optional[int]]: ...

    def is_fully_defined(self) -> bool: ...


class Tensor(Protocol):
    """Output number `value_index` of an operation."""

    name: str
    op: Operation
    value_index: int
    dtype: DType
    shape: StaticShape

    def consumers(self) -> list[Operation]: ...

    def ref(self) -> object:
        """A key for dictionaries: tensors compare element by element."""


class Operation(Protocol):
    """One operation of a graph.

    Attributes:
        graph: its tf.Graph, or the FuncGraph of a function body.
        op_def: its definition: names and kinds of operands and attributes.
        node_def: its own attributes, including those without a definition.
        traceback: stack frames of the call that built it; operations of bodies have none.
    """

    type: str
    name: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    control_inputs: Sequence[Operation]
    graph: Any
    op_def: Any
    node_def: Any
    traceback: Any

    def get_attr(self, name: str) -> Any:
        """Value of an attribute: a number, bytes, a dtype, or a list of these."""

    def _get_control_flow_context(self) -> Any:
        """The conditional of version 1 that contains it; private API of TensorFlow."""


class FunctionBody(Protocol):
    """The FuncGraph of a function that a conditional or a call runs."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    control_outputs: Sequence[Operation]
