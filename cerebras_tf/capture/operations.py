"""TensorFlow's operations and tensors, as far as capture reads them.

TensorFlow has no types of its own that mypy could read; its classes fulfil these protocols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Protocol


class DType(Protocol):
    """Element type; `name` as the IR has it."""

    @property
    def name(self) -> str: ...

    @property
    def base_dtype(self) -> DType: ...


class StaticShape(Protocol):
    """Dimensions known while the graph is built; the rank is None where not even that is."""

    @property
    def rank(self) -> Optional[int]: ...

    def as_list(self) -> list[Optional[int]]: ...

    def is_fully_defined(self) -> bool: ...


class Tensor(Protocol):
    """Output number `value_index` of an operation."""

    @property
    def name(self) -> str: ...

    @property
    def op(self) -> Operation: ...

    @property
    def value_index(self) -> int: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> StaticShape: ...

    def consumers(self) -> list[Operation]: ...

    def ref(self) -> object:
        """A key for dictionaries: tensors compare element by element."""


class Operation(Protocol):
    """One operation of a graph.

    Attributes:
        graph: the tf.Graph, or the FuncGraph of a function body, that it stands in.
        op_def: its definition: names and kinds of operands and attributes.
        node_def: its own attributes, those without a definition included.
        traceback: stack frames of the call that built it; operations of bodies have none.
    """

    @property
    def type(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> Sequence[Tensor]: ...

    @property
    def outputs(self) -> Sequence[Tensor]: ...

    @property
    def control_inputs(self) -> Sequence[Operation]: ...

    @property
    def graph(self) -> Any: ...

    @property
    def op_def(self) -> Any: ...

    @property
    def node_def(self) -> Any: ...

    @property
    def traceback(self) -> Any: ...

    def get_attr(self, name: str) -> Any:
        """Value of an attribute: a number, bytes, a dtype, a list of such."""

    def _get_control_flow_context(self) -> Any:
        """The conditional of version 1 around the operation; private API of TF 2.15."""


class FunctionBody(Protocol):
    """The FuncGraph of a function: what a conditional or a call runs."""

    @property
    def inputs(self) -> Sequence[Tensor]: ...

    @property
    def outputs(self) -> Sequence[Tensor]: ...

    @property
    def control_outputs(self) -> Sequence[Operation]: ...
