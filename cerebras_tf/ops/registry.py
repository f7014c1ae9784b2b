"""The op table: what every op of the IR is. One entry an op, one registration call each.

An entry says how types follow from operands, how the gradient is written in other ops, and what
the op costs. It deliberately does not compute: kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Node, Size, TensorType, Value

if TYPE_CHECKING:
    from cerebras_tf.ops.builder import Builder

Attrs = dict[str, Any]
Infer = Callable[[Sequence[Value], Attrs], list[TensorType]]
# Cotangents of the outputs in (None: zero), cotangents of the inputs out (None: zero).
Vjp = Callable[["Builder", Node, "list[Optional[Value]]"], "list[Optional[Value]]"]
Flops = Callable[[Node], Size]


@dataclass(frozen=True)
class OpDef:
    """What an op is.

    Attributes:
        name: lower_snake name.
        family: the file it is defined in, e.g. "elementwise".
        infer: operands and attributes -> types of the outputs; raises GraphError on bad operands.
        vjp: the vector-Jacobian product in other ops; None where there is none.
        differentiable: False for ops whose derivative is zero or not defined (comparisons, ...).
        elementwise: one output, computed element by element after broadcasting; may be fused.
        view: whether outputs are the memory of the operands, in order, under other shapes; a
            function of the node where that depends on types and attributes.
        structural: its attributes hold graphs, or it stands for nodes still to be written. It has
            no kernel: dispatch runs the graphs, or a pass expands the node, gradient included.
        flops: floating point operations of one node; multiply and add count two.
    """

    name: str
    family: str
    infer: Infer
    vjp: Optional[Vjp] = None
    differentiable: bool = True
    elementwise: bool = False
    view: Union[bool, Callable[[Node], bool]] = False
    structural: bool = False
    flops: Optional[Flops] = None


OPS: dict[str, OpDef] = {}


def register(
    name: str,
    infer: Infer,
    vjp: Optional[Vjp] = None,
    *,
    differentiable: bool = True,
    elementwise: bool = False,
    view: Union[bool, Callable[[Node], bool]] = False,
    structural: bool = False,
    flops: Optional[Flops] = None,
) -> None:
    """Adds an op to the table; the family is the file of its inference or gradient function."""
    owner = vjp or infer
    family = owner.__module__.rpartition(".")[2]
    if name in OPS:
        raise GraphError(f"op table: {name} must be registered once. Received it twice. Rename it.")
    OPS[name] = OpDef(
        name, family, infer, vjp, differentiable, elementwise, view, structural, flops
    )


def lookup(name: str) -> OpDef:
    """The definition of an op; UnsupportedOpError names the table where it is missing."""
    if name not in OPS:
        raise UnsupportedOpError(
            f"op {name}: must be in the op table (cerebras_tf/ops). Received an unknown name. "
            "Register it there."
        )
    return OPS[name]


def viewed(value: Value) -> Value:
    """The value whose memory this one is: itself, unless a view op made it."""
    while value.node is not None and is_view(value.node):
        value = value.node.inputs[value.index]
    return value


def is_view(node: Node) -> bool:
    """Whether the node's outputs are the memory of its operands, in order."""
    view = lookup(node.op).view
    return view(node) if callable(view) else view


def infer(op: str, inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """Types of an op's outputs; errors name the op and its operands."""
    try:
        return lookup(op).infer(inputs, attrs)
    except (GraphError, UnsupportedOpError):
        raise
    except Exception as error:  # an operand of a kind the rule did not expect
        operands = ", ".join(repr(value) for value in inputs)
        shown = {key: value for key, value in attrs.items() if key != "value"}
        raise GraphError(
            f"op {op}: types could not be inferred ({error}). "
            f"Received: ({operands}), {shown}. Check the operands."
        ) from error


def element_flops(count: int) -> Flops:
    """A cost of `count` operations for every element of the first output."""

    def flops(node: Node) -> Size:
        return count * node.outputs[0].type.size

    return flops
