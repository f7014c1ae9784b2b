"""The op table: one entry for each op, added by `register`.

An entry says how types are inferred, how the gradient is written in other ops, what the op costs,
and what a pass may do with a node without knowing the op by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Optional, ParamSpec, Union

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Graph, Node, Size, TensorType, Value
from cerebras_tf.ops.rows import RowRule

if TYPE_CHECKING:
    from cerebras_tf.ops.builder import Builder

Attrs = dict[str, Any]
Types = list[TensorType]
Infer = Callable[[Sequence[Value], Attrs], Types]
# Cotangents of the outputs in (None: zero), cotangents of the inputs out (None: zero).
Vjp = Callable[["Builder", Node, "list[Optional[Value]]"], "list[Optional[Value]]"]
Flops = Callable[[Node], Size]
Products = Callable[[Node], "tuple[Optional[Size], ...]"]
# Whether a node with these attributes draws random numbers.
Draws = Callable[[Attrs], bool]
# Emits a reverse pass: builder, ys, their cotangents, xs -> cotangents of the xs (None: zero).
Reverse = Callable[["Builder", list[Value], list[Value], list[Value]], "list[Optional[Value]]"]
# Types that the programs of regions take and give, by attribute.
Signature = dict[str, "tuple[Types, Types]"]
_Fields = ParamSpec("_Fields")


def never(attrs: Attrs) -> bool:
    """No node of the op draws random numbers."""
    return False


def always(attrs: Attrs) -> bool:
    """Every node of the op draws random numbers."""
    return True


@dataclass(frozen=True)
class Region:
    """A graph in a node's attributes, and which values of the node enter and leave it.

    Attributes:
        operands: for every input of the graph, the position of the node's operand that it is (in a
            loop: at first); None where the op makes it, such as the counter of a loop.
        outputs: for every output of the graph, the position of the node's output that it may
            become; None where only the op reads it, such as the condition of a loop.
        carried: pairs (output, input) of the graph: the next iteration of a loop reads the output
            as the input.
    """

    graph: Graph
    operands: tuple[Optional[int], ...]
    outputs: tuple[Optional[int], ...]
    carried: tuple[tuple[int, int], ...] = ()


def _no_regions(node: Node) -> list[Region]:
    return []


@dataclass(frozen=True)
class Structure:
    """What passes and backends ask of a structural op: one whose attributes hold graphs.

    Attributes:
        regions: the graphs of a node. An operand that enters none of them decides which runs, or
            how often.
        vjp: as OpDef.vjp, but is also given the function that differentiates a region.
        inline: emits a node's work without its regions, all of whose nodes are cheap, and returns
            its outputs; None, or returning None, keeps the node.
        compiles_regions: instructions hold a program for each region, which
            runtime/subprogram.py runs. Else a pass expands the node, or a kernel reads its graphs.
        signature: attributes, types of the operands and of the outputs -> those of the programs;
            needed with compiles_regions, as is the cost.
        cost: attributes with programs as regions -> flops and bytes of scratch memory.
    """

    regions: Callable[[Node], list[Region]] = _no_regions
    _: KW_ONLY
    vjp: Optional[
        Callable[[Builder, Node, list[Optional[Value]], Reverse], list[Optional[Value]]]
    ] = None
    inline: Optional[Callable[[Builder, Node], Optional[list[Value]]]] = None
    compiles_regions: bool = False
    signature: Optional[
        Callable[[Attrs, Sequence[TensorType], Sequence[TensorType]], Signature]
    ] = None
    cost: Optional[Callable[[Attrs], tuple[int, int]]] = None


@dataclass(frozen=True)
class OpDef:
    """An op.

    Attributes:
        infer: operands and attributes -> types of the outputs; raises GraphError on bad operands.
        vjp: the vector-Jacobian product in other ops; None if there is none.
        rows: whether rows over leading axes (tokens) are independent; see ops/rows.py.
        draws: whether a node draws random numbers. Its last two operands are then the step, int64
            [], and the seeds, int64 [2]. Such a node is not folded, merged with an equal one or run
            speculatively.
        differentiable: False for ops whose derivative is zero or not defined (comparisons, ...).
        elementwise: one output, computed element by element after broadcasting; may be fused.
        broadcasts: operands are broadcast, so they need no explicit broadcast before.
        cheap: at most one pass over the operands, which cannot fail: may run although its result
            may not be needed. True for all elementwise ops.
        repeats: whether its output holds the elements of its only operand, perhaps repeated along
            axes.
        view: whether outputs are the memory of the operands, in order, with other shapes; a
            function of the node where that depends on types and attributes.
        overwrites: position of an operand that the output may overwrite if nothing reads it later.
        structure: for an op whose attributes hold graphs, or that a pass expands. It has no entry
            in the kernel tables.
        zeros: positions of operands of which each alone, being 0 (False) everywhere, makes all
            outputs 0, whatever finite numbers the others hold.
        linear: groups of operands, in each of which the outputs are linear, its members taken
            together and all others held fixed; of floating operands and outputs.
        collective: all wafers must run the node together, in one order. It is not folded or
            recomputed.
        flops: floating point operations of one node; multiply and add count two.
        of_range: its outputs say only whether floats are finite, which rounding does not change.
        products: sizes M, K, N of its matrix products, None where unknown, of an op whose kernels
            support the attribute compute="bfloat16" (passes/lower_products.py).
        rounded: positions of operands that, with it, are rounded and may be stored in bfloat16.
        rounds: whether the attribute dtype="bfloat16" rounds its first output.
    """

    name: str
    infer: Infer
    vjp: Optional[Vjp] = None
    _: KW_ONLY
    rows: RowRule
    draws: Draws = never
    differentiable: bool = True
    elementwise: bool = False
    broadcasts: bool = False
    cheap: bool = False
    repeats: bool = False
    view: Union[bool, Callable[[Node], bool]] = False
    overwrites: Optional[int] = None
    structure: Optional[Structure] = None
    zeros: tuple[int, ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()
    collective: bool = False
    flops: Optional[Flops] = None
    of_range: bool = False
    products: Optional[Products] = None
    rounded: tuple[int, ...] = ()
    rounds: bool = False

    def __post_init__(self) -> None:
        if self.elementwise:
            object.__setattr__(self, "cheap", True)

    @property
    def has_gradient(self) -> bool:
        """Whether it has a gradient rule."""
        return self.vjp is not None or (
            self.structure is not None and self.structure.vjp is not None
        )

    @property
    def family(self) -> str:
        """The file of its gradient or inference function, such as "elementwise"."""
        return (self.vjp or self.infer).__module__.rpartition(".")[2]


OPS: dict[str, OpDef] = {}


def _registering(make: Callable[_Fields, OpDef]) -> Callable[_Fields, None]:
    """A function with the arguments of `make` that adds the op to the table."""

    @functools.wraps(make)
    def add(*args: _Fields.args, **kwargs: _Fields.kwargs) -> None:
        known = make(*args, **kwargs)
        if known.name in OPS:
            raise GraphError(f"op table: names must differ. Received: {known.name} twice.")
        OPS[known.name] = known

    return add


register = _registering(OpDef)


def lookup(name: str) -> OpDef:
    """The definition of an op; raises UnsupportedOpError if there is none."""
    if name not in OPS:
        raise UnsupportedOpError(f"op {name}: must be in the op table. Received: no entry..")
    return OPS[name]


def draws(node: Node) -> bool:
    """Whether a node draws random numbers; see OpDef.draws."""
    return lookup(node.op).draws(node.attrs)


def regions(node: Node) -> list[Region]:
    """The regions of a structural node; none of others."""
    structure = lookup(node.op).structure
    return [] if structure is None else structure.regions(node)


def can_fold(op: str, attrs: Attrs) -> bool:
    """Whether a node of constant operands may be computed at compile time."""
    known = lookup(op)
    return not (known.structure or known.collective or known.draws(attrs))


def viewed(value: Value) -> Value:
    """The value whose memory this one shows: itself, unless it is a view."""
    while value.node is not None and is_view(value.node):
        value = value.node.inputs[value.index]
    return value


def is_view(node: Node) -> bool:
    """Whether the node's outputs are the memory of its operands, in order."""
    view = lookup(node.op).view
    return view(node) if callable(view) else view


def gives_view(
    op: str, inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Attrs
) -> bool:
    """is_view of a node of these types."""
    view = lookup(op).view
    return view(Node.of_types(op, inputs, outputs, attrs)) if callable(view) else view


def infer(op: str, inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """Types of an op's outputs; errors name the op and its operands."""
    try:
        return lookup(op).infer(inputs, attrs)
    except (GraphError, UnsupportedOpError):
        raise
    except Exception as error:  # an operand that the rule did not expect
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
