"""What a Python-like slice `start:stop:stride` reads of an axis, its size a number or symbolic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Size, least_of
from cerebras_tf.ir.dimensions import ensure_at_most, greatest_of, is_at_most

if TYPE_CHECKING:
    Span = slice[Optional[Size], Optional[Size], int]


def resolve_span(dim: Size, span: Span) -> tuple[Size, Size, int]:
    """First position, number of elements and stride of a slice of an axis.

    Args:
        dim: size of the axis.
        span: start and stop are sizes, negative from the end, or None; the stride is an int.

    Raises:
        UnsupportedOpError: where the slice begins or ends is no polynomial of symbolic sizes.
        SizeLimitError: it is one for sizes up to a limit.
        GraphError: how many elements a stride takes is none.
    """
    if all(end is None or isinstance(end, int) for end in (dim, span.start, span.stop)):
        start, stop, stride = span.indices(dim)  # type: ignore[arg-type]
        size = len(range(start, stop, stride))
        return (start if size else 0), size, stride
    if span.step == -1 and span.start is None and span.stop is None:
        return dim - 1, dim, -1
    if span.step < 0:
        raise _differs(dim, span)
    first = _position(dim, span.start, 0, span)
    last = _position(dim, span.stop, dim, span)
    if is_at_most(last, first):
        return 0, 0, 1
    if not ensure_at_most(first, last):
        raise _differs(dim, span)
    return first, -((first - last) // span.step), span.step


def resolve_position(dim: Size, number: Size) -> Size:
    """Position of one element counted from the front; a negative number counts from the end.

    Raises:
        UnsupportedOpError: the number is negative for some sizes only.
    """
    if greatest_of(number) < 0:
        return number + dim
    if least_of(number) < 0:
        raise _differs(dim, slice(number, number, 1))
    return number


def _position(dim: Size, end: Optional[Size], default: Size, span: Span) -> Size:
    """Where an end lies in [0, dim], counted from the front."""
    if end is None:
        return default
    end = resolve_position(dim, end)
    for check in (is_at_most, ensure_at_most):
        if check(end, 0):
            return 0
        if check(0, end) and check(end, dim):
            return end
        if check(dim, end):
            return dim
    raise _differs(dim, span)


def _differs(dim: Size, span: Span) -> UnsupportedOpError:
    return UnsupportedOpError(
        "a slice of a symbolic axis must begin and end alike for every size. Received: "
        f"{span.start}:{span.stop}:{span.step} of {dim}. Set the static shape."
    )
