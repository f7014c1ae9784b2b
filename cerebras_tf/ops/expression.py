"""Infix arithmetic on values of a graph, for rules that are formulas."""

from __future__ import annotations

from typing import Any, Union

from cerebras_tf.ir import Value
from cerebras_tf.ops.builder import Builder

Scalar = Union["Expression", float]


class Expression:
    """A value with the builder of its graph; operators and methods emit ops.

    Numbers become constants of the value's dtype.
    """

    __slots__ = ("_b", "value")

    def __init__(self, b: Builder, value: Value) -> None:
        self._b = b
        self.value = value

    def _emit(self, op: str, *operands: Scalar, **attrs: Any) -> Expression:
        given = [item.value if isinstance(item, Expression) else item for item in operands]
        return Expression(self._b, self._b.op(op, *given, **attrs))

    def __add__(self, other: Scalar) -> Expression:
        return self._emit("add", self, other)

    def __sub__(self, other: Scalar) -> Expression:
        return self._emit("sub", self, other)

    def __mul__(self, other: Scalar) -> Expression:
        return self._emit("mul", self, other)

    def __truediv__(self, other: Scalar) -> Expression:
        return self._emit("div", self, other)

    def __pow__(self, other: Scalar) -> Expression:
        return self._emit("pow", self, other)

    def __radd__(self, other: float) -> Expression:
        return self._emit("add", other, self)

    def __rsub__(self, other: float) -> Expression:
        return self._emit("sub", other, self)

    def __rmul__(self, other: float) -> Expression:
        return self._emit("mul", other, self)

    def __rtruediv__(self, other: float) -> Expression:
        return self._emit("div", other, self)

    def __gt__(self, other: Scalar) -> Expression:
        return self._emit("greater", self, other)

    def __neg__(self) -> Expression:
        return self._emit("neg", self)

    def __abs__(self) -> Expression:
        return self._emit("abs", self)

    def exp(self) -> Expression:
        """e to this power."""
        return self._emit("exp", self)

    def maximum(self, other: Scalar) -> Expression:
        """The larger of both, element by element."""
        return self._emit("maximum", self, other)

    def relu(self) -> Expression:
        """max(this, 0)."""
        return self._emit("relu", self)

    def rsqrt(self) -> Expression:
        """One over the square root."""
        return self._emit("rsqrt", self)

    def sign(self) -> Expression:
        """-1, 0 or 1."""
        return self._emit("sign", self)

    def sqrt(self) -> Expression:
        """The square root."""
        return self._emit("sqrt", self)

    def square(self) -> Expression:
        """The product with itself."""
        return self._emit("square", self)

    def sum(self) -> Expression:
        """Scalar: the sum of all elements."""
        axes = tuple(range(self.value.type.rank))
        return self._emit("sum", self, axes=axes, keepdims=False)

    def cast_like(self, other: Expression) -> Expression:
        """This cast to the dtype of another."""
        return self._emit("cast", self, dtype=other.value.dtype)

    def select(self, then: Expression, otherwise: Scalar) -> Expression:
        """`then` where this is true, else `otherwise`; a number takes the dtype of `then`."""
        if not isinstance(otherwise, Expression):
            constant = self._b.constant(otherwise, then.value.dtype)
            otherwise = Expression(self._b, constant)
        return self._emit("select", self, then, otherwise)
