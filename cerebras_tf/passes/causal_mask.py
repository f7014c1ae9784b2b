"""Recognises additive causal masks, constant or of symbolic sizes.

A mask of symbolic sizes is evaluated symbolically through the ops that compute it, as a function of
the row and the column of an element: ranges are linear forms, and their comparisons, or a band of a
matrix, are steps from one number to another where a form becomes positive.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

import numpy as np

from cerebras_tf.ir import Array, Node, Size, Value
from cerebras_tf.ir.dimensions import is_at_most
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import lookup

# A mask up to this hides a score: exp(score + mask - max) is 0 in float32 for scores within 9e3.
HIDDEN = -1e4
ROW, COLUMN, NEITHER = 0, 1, -1
# Whether an axis of a value is the row or the column.
Axes = tuple[int, ...]


class _Form(NamedTuple):
    """row * (row of the element) + column * (its column) + rest."""

    row: Size
    column: Size
    rest: Size

    def plus(self, other: _Form, factor: int) -> _Form:
        """The sum of this form and `factor` times the other."""
        return _Form(*(a + factor * b for a, b in zip(self, other)))


class _Step(NamedTuple):
    """`past` where a form is positive, else `within`; both are scalars."""

    form: _Form
    within: Array
    past: Array


# A value's elements; an array is a scalar that all of them equal.
_Known = Union[_Form, _Step, Array]
_UNITS = {ROW: _Form(1, 0, 0), COLUMN: _Form(0, 1, 0), NEITHER: _Form(0, 0, 0)}


def is_causal(mask: Value) -> bool:
    """Whether a mask [..., S, T] is 0 up to the last diagonal, and hides all later positions, for
    every S and T that it may have."""
    if mask.constant is not None:
        return _hides_after_diagonal(mask.constant)
    if mask.type.rank < 2 or not mask.type.is_bounded or any(d != 1 for d in mask.shape[:-2]):
        return False
    rows, columns = mask.shape[-2:]
    assert rows is not None and columns is not None
    known = _follow(mask, (*(NEITHER,) * (mask.type.rank - 2), ROW, COLUMN))
    if not isinstance(known, _Step) or not is_at_most(rows, columns):
        return False
    after = _Form(-1, 1, rows - columns)  # positive after the diagonal
    step = _facing(known, after)
    return step is not None and bool(step.within == 0 and step.past <= HIDDEN)


class CausalMask(NamedTuple):
    """A mask that is causal, and hides further keys.

    Attributes:
        seen: bool values, True where a key is visible to every query that it is not after.
        window: query i sees keys after i - window only; None: all of them.
        condition: the bool value that is True where a score counts, before it was broadcast.
    """

    seen: tuple[Value, ...]
    window: Optional[int]
    condition: Value


def split_causal(mask: Value) -> Optional[CausalMask]:
    """A mask [.., S, S] as a causal one and masks of keys; None if it is of another form.

    Args:
        mask: what is added to scores: `select(condition, 0, at most HIDDEN)`, where the condition
            is a conjunction.
    """
    node = narrowed(mask).node
    if node is None or node.op != "select":
        return None
    condition, *others = node.inputs
    within, past = (_single(value) for value in others)
    if within != 0 or past is None or past > HIDDEN:
        return None
    seen: dict[Value, None] = {}
    window: Optional[int] = None
    causal = False
    for part in _conjuncts(condition):
        if part.constant is not None and part.constant.all():
            continue
        if part.type.rank < 2 or part.shape[-2] == 1:
            seen[part] = None
            continue
        rows, columns = part.shape[-2:]
        known = _follow(part, (*(NEITHER,) * (part.type.rank - 2), ROW, COLUMN))
        if isinstance(known, _Step) and rows == columns:
            after, before = _facing(known, _Form(-1, 1, 0)), _windowed(known)
            if after is not None and after.within and not after.past:
                causal = True
                continue
            if before is not None:
                window = before if window is None else min(window, before)
                continue
        if isinstance(known, _Step) or not isinstance(known, np.ndarray) or not known.all():
            return None
    return CausalMask(tuple(seen), window, narrowed(condition)) if causal else None


def narrowed(value: Value) -> Value:
    """A value before it was broadcast."""
    while value.node is not None and lookup(value.node.op).repeats:
        value = value.node.inputs[0]
    return value


def _single(value: Value) -> Optional[float]:
    """The only element of a value that is a constant."""
    constant = narrowed(value).constant
    return float(constant.reshape(())) if constant is not None and constant.size == 1 else None


def _conjuncts(condition: Value) -> list[Value]:
    """The values whose conjunction a value is, without broadcasts."""
    found, pending = [], [condition]
    while pending:
        value = pending.pop()
        node = value.node
        if node is not None and (node.op == "logical_and" or lookup(node.op).repeats):
            pending += node.inputs
        else:
            found.append(value)
    return found


def _windowed(step: _Step) -> Optional[int]:
    """The width of a window that ends at the diagonal, if a step is one."""
    form = step.form if step.past else _Form(0, 0, 1).plus(step.form, -1)
    seen, hidden = (step.past, step.within) if step.past else (step.within, step.past)
    if form[:2] != (-1, 1) or not isinstance(form.rest, int) or form.rest < 1:
        return None
    return form.rest if seen and not hidden else None


def _hides_after_diagonal(mask: Array) -> bool:
    """As is_causal, for a constant."""
    if mask.ndim < 2 or not mask.size or mask.shape[-1] < mask.shape[-2]:
        return False
    rows, columns = mask.shape[-2:]
    hidden = np.arange(columns) > np.arange(rows)[:, None] + (columns - rows)
    squares = mask.reshape(-1, rows, columns)
    return bool(np.all(squares[:, ~hidden] == 0) and np.all(squares[:, hidden] <= HIDDEN))


def _facing(step: _Step, form: _Form) -> Optional[_Step]:
    """The step in terms of an equal or complementary form; None for other forms."""
    if step.form == form:
        return step
    if _Form(0, 0, 1).plus(step.form, -1) == form:
        return _Step(form, step.past, step.within)
    return None


def _follow(value: Value, axes: Axes) -> Optional[_Known]:
    """The elements of a value with these axes; None if they are unknown."""
    node = value.node
    if node is None or len(node.outputs) != 1:
        return None
    if node.op == "constant":
        return _constant(node.attrs["value"], axes)
    if node.op == "sizes" and not axes:
        return _Form(0, 0, node.attrs["dims"])
    if node.op == "iota" and value.dtype in _EXACT:
        return (
            _UNITS[NEITHER]
            .plus(_Form(0, 0, node.attrs["start"]), 1)
            .plus(_UNITS[axes[0]], node.attrs["step"])
        )
    if _moves(node):
        inner = _axes_below(node, axes)
        return None if inner is None else _moved(node, _follow(node.inputs[0], inner), axes)
    if not lookup(node.op).elementwise:
        return None
    operands = []
    for operand in node.inputs:
        own = axes[len(axes) - operand.type.rank :]
        kept = (NEITHER if dim == 1 else axis for axis, dim in zip(own, operand.shape))
        known = _follow(operand, tuple(kept))
        if known is None:
            return None
        operands.append(known)
    return _combine(node, operands)


def _moves(node: Node) -> bool:
    return node.op in ("broadcast_to", "reshape", "transpose", "slice", "cumsum", "band_part")


def _axes_below(node: Node, axes: Axes) -> Optional[Axes]:
    """The axes of the operand of a node that moves elements."""
    shape = node.inputs[0].shape
    if node.op == "broadcast_to":
        own = axes[len(axes) - len(shape) :]
        return tuple(NEITHER if dim == 1 else axis for axis, dim in zip(own, shape))
    if node.op == "transpose":
        places = [node.attrs["permutation"].index(axis) for axis in range(len(shape))]
        return tuple(axes[place] for place in places)
    if node.op == "reshape":  # only axes of size 1 may be added and removed
        longer = [(dim, axis) for dim, axis in zip(node.output.shape, axes) if dim != 1]
        if [dim for dim, _ in longer] != [dim for dim in shape if dim != 1]:
            return None
        counted = iter(axis for _, axis in longer)
        return tuple(NEITHER if dim == 1 else next(counted) for dim in shape)
    return axes


def _moved(node: Node, known: Optional[_Known], axes: Axes) -> Optional[_Known]:
    """The output of a node that moves elements, given its operand."""
    attrs = node.attrs
    if known is None or node.op in ("broadcast_to", "reshape", "transpose"):
        return known
    if node.op == "slice":
        if any(stride != 1 for stride in attrs["strides"]):
            return None
        if isinstance(known, (_Form, _Step)):
            return _shifted(known, axes, attrs["starts"])
        return known
    if isinstance(known, (_Form, _Step)):
        return None
    if node.op == "cumsum":
        count = _whole(known)
        if count is None or attrs["reverse"]:
            return None
        first = _Form(0, 0, 0 if attrs["exclusive"] else count)
        return first.plus(_UNITS[axes[attrs["axis"]]], count)
    lower, upper = attrs["lower"], attrs["upper"]
    below = _UNITS[axes[-2]].plus(_UNITS[axes[-1]], -1)
    nothing = np.zeros_like(known)
    if lower < 0 <= upper:
        return _Step(_Form(0, 0, -upper).plus(below, -1), known, nothing)
    if upper < 0 <= lower:
        return _Step(_Form(0, 0, -lower).plus(below, 1), known, nothing)
    return known if lower < 0 and upper < 0 else None


def _shifted(known: Union[_Form, _Step], axes: Axes, starts: tuple[Size, ...]) -> _Known:
    """The output of a slice: element i is element i + start of the operand."""
    form = known.form if isinstance(known, _Step) else known
    rest = form.rest
    for axis, start in zip(axes, starts):
        if axis != NEITHER:
            rest = rest + (form.row if axis == ROW else form.column) * start
    moved = form._replace(rest=rest)
    return known._replace(form=moved) if isinstance(known, _Step) else moved


def _constant(content: Array, axes: Axes) -> Optional[_Known]:
    """A scalar, or a matrix of two numbers, one of them after some diagonal."""
    if content.size == 1:
        return content.reshape(())
    matrix = content.reshape([dim for dim in content.shape if dim != 1])
    counted = [axis for axis in axes if axis != NEITHER]
    if matrix.ndim != 2 or counted != [ROW, COLUMN] or min(matrix.shape) < 2:
        return None
    rows, columns = matrix.shape
    # By column - row, from 1 - rows.
    diagonals = np.concatenate([matrix[:0:-1, 0], matrix[0]])
    changes = np.flatnonzero(diagonals[1:] != diagonals[:-1])
    last = int(changes[0]) + 1 - rows if len(changes) else columns
    within, past = diagonals[0], diagonals[-1]
    after = np.arange(columns) - np.arange(rows)[:, None] > last
    if not np.array_equal(matrix, np.where(after, past, within)):
        return None
    return _Step(_Form(-1, 1, -last), np.asarray(within), np.asarray(past))


def _whole(known: Array) -> Optional[int]:
    number = known.item()
    return int(number) if float(number).is_integer() else None


def _combine(node: Node, operands: list[_Known]) -> Optional[_Known]:
    """The output of an elementwise op."""
    steps = [operand for operand in operands if isinstance(operand, _Step)]
    if any(isinstance(operand, _Form) for operand in operands):
        return None if steps else _of_forms(node, operands)
    form = steps[0].form if steps else _UNITS[NEITHER]
    before: list[Array] = []
    after: list[Array] = []
    for operand in operands:
        step = _facing(operand, form) if isinstance(operand, _Step) else operand
        if step is None or isinstance(step, _Form):
            return None
        before.append(step.within if isinstance(step, _Step) else step)
        after.append(step.past if isinstance(step, _Step) else step)
    (within,), (past,) = (evaluate(node.op, side, node.attrs) for side in (before, after))
    return _Step(form, within, past) if steps else np.asarray(within)


def _of_forms(node: Node, operands: list[_Known]) -> Optional[_Known]:
    """Sums, multiples and comparisons of linear forms."""
    forms = []
    for operand in operands:
        if not isinstance(operand, _Form):
            number = None if isinstance(operand, _Step) else _whole(operand)
            if number is None:
                return None
            operand = _Form(0, 0, number)
        forms.append(operand)
    if node.op in ("cast", "identity", "stop_gradient"):
        return forms[0] if node.output.dtype in _EXACT else None
    if node.op in ("add", "sub"):
        return forms[0].plus(forms[1], 1 if node.op == "add" else -1)
    if node.op == "mul":
        factors = [form.rest for form in forms if form[:2] == (0, 0) and isinstance(form.rest, int)]
        if not factors:
            return None
        other = forms[1] if forms[0] == (0, 0, factors[0]) else forms[0]
        return _UNITS[NEITHER].plus(other, factors[0])
    if node.op in ("greater", "greater_equal", "less", "less_equal"):
        first, equal = int(node.op.startswith("less")), int(node.op.endswith("equal"))
        above = forms[first].plus(forms[1 - first], -1).plus(_Form(0, 0, equal), 1)
        return _Step(above, np.array(False), np.array(True))
    return None


# Types that represent every position exactly.
_EXACT = ("int32", "int64", "float32", "float64")
