"""Symbolic sizes: dimensions that differ from batch to batch, up to a bound.

A `Dim` is a polynomial with integer coefficients over symbols. It is no int on purpose: code that
needs a number (`range`, `np.array(shape)`, `<`) raises TypeError instead of taking one batch's size
for that of all.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from cerebras_tf.errors import GraphError


@dataclass(frozen=True, order=True)
class Symbol:
    """A size that is known when a batch is: from 1 to `most`."""

    name: str
    most: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.most < 1:
            raise GraphError(
                "symbol: the name must be an identifier, the bound at least 1. "
                f"Received: {self.name!r}, {self.most}. Correct them."
            )


# Symbols of one product, sorted, as often as they stand in it; () is the constant term.
Monomial = tuple[Symbol, ...]
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FACTOR = re.compile(
    r"(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)<=(?P<most>\d+)"
    r"|\((?P<name2>[A-Za-z_]\w*)<=(?P<most2>\d+)\)",
    re.ASCII,
)


class Dim:
    """A size that depends on the batch, such as `8*S + 1` with S from 1 to 128.

    Dims are equal where their polynomials are. A result that depends on no symbol any more is an
    int. `str` gives text that `parse_dim` reads back: `8*(S<=128)+1`.
    """

    __slots__ = ("_hash", "terms")
    # NumPy's numbers leave arithmetic with a Dim to the Dim.
    __array_ufunc__ = None
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        """A polynomial: coefficients by product of symbols, of which one at least has a symbol.

        Raises:
            GraphError: no symbol is left (use an int), or one name stands for two bounds.
        """
        kept = sorted(
            ((tuple(sorted(product)), count) for product, count in terms.items() if count),
            key=lambda term: (-len(term[0]), term[0]),
        )
        symbols = {symbol for product, _ in kept for symbol in product}
        if not symbols or len({symbol.name for symbol in symbols}) != len(symbols):
            raise GraphError(
                "dimension: a symbolic one needs symbols, and one bound for each. "
                f"Received: {kept}. Use an int, or another name."
            )
        object.__setattr__(self, "terms", tuple(kept))
        object.__setattr__(self, "_hash", hash(self.terms))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Dim does not change; make another one.")

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim, (dict(self.terms),)

    @staticmethod
    def symbol(name: str, most: int) -> Dim:
        """The size that is one symbol: `Dim.symbol("S", 128)`."""
        return Dim({(Symbol(name, most),): 1})

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols it depends on."""
        return frozenset(symbol for product, _ in self.terms for symbol in product)

    @property
    def most(self) -> int:
        """An upper bound over all sizes; the largest value where no coefficient is negative."""
        return self._extreme(True)

    @property
    def least(self) -> int:
        """A lower bound over all sizes; the smallest value where no coefficient is negative."""
        return self._extreme(False)

    def _extreme(self, upper: bool) -> int:
        return sum(
            count * (math.prod(s.most for s in product) if (count > 0) is upper else 1)
            for product, count in self.terms
        )

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number for one size a symbol.

        Raises:
            GraphError: a symbol has no size, or one outside of [1, most].
        """
        for symbol in sorted(self.symbols):
            size = sizes.get(symbol.name)
            if size is None or not 1 <= size <= symbol.most:
                raise GraphError(
                    f"dimension {self}: {symbol.name} must be in [1, {symbol.most}]. "
                    f"Received: {size}. Use a program for larger sizes."
                )
        return sum(
            count * math.prod(sizes[symbol.name] for symbol in product)
            for product, count in self.terms
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return int(self._hash)  # type: ignore[attr-defined]

    def __bool__(self) -> bool:
        """True where no size makes it 0; else TypeError."""
        if self.least > 0 or self.most < 0:
            return True
        raise TypeError(f"dimension {self}: may be 0 or not; compare its least or most.")

    def __add__(self, other: Any) -> Size:
        return _combined(self, other, lambda a, b: _sum(a, b, 1))

    def __radd__(self, other: Any) -> Size:
        return _combined(other, self, lambda a, b: _sum(a, b, 1))

    def __sub__(self, other: Any) -> Size:
        return _combined(self, other, lambda a, b: _sum(a, b, -1))

    def __rsub__(self, other: Any) -> Size:
        return _combined(other, self, lambda a, b: _sum(a, b, -1))

    def __mul__(self, other: Any) -> Size:
        return _combined(self, other, _product)

    def __rmul__(self, other: Any) -> Size:
        return _combined(other, self, _product)

    def __neg__(self) -> Size:
        return -1 * self

    def __floordiv__(self, other: Any) -> Size:
        """The exact quotient; GraphError where there is none for all sizes."""
        return _combined(self, other, _quotient)

    def __rfloordiv__(self, other: Any) -> Size:
        return _combined(other, self, _quotient)

    def __str__(self) -> str:
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            symbol = self.terms[0][0][0]
            return f"{symbol.name}<={symbol.most}"
        text = ""
        for product, count in self.terms:
            factors = [f"({symbol.name}<={symbol.most})" for symbol in product]
            if abs(count) != 1 or not factors:
                factors.insert(0, str(abs(count)))
            text += ("-" if count < 0 else "+" if text else "") + "*".join(factors)
        return text

    def __repr__(self) -> str:
        return f"Dim('{self}')"


Size = Union[int, Dim]
_Terms = Mapping[Monomial, int]


def size_of(terms: Mapping[Monomial, int]) -> Size:
    """The size of a polynomial: an int where it has no symbol."""
    left = {product: count for product, count in terms.items() if count}
    if any(left):
        return Dim(left)
    return left.get((), 0)


def _terms(value: Any) -> _Terms:
    return dict(value.terms) if isinstance(value, Dim) else {(): operator.index(value)}


def _combined(first: Any, second: Any, combine: Callable[[_Terms, _Terms], _Terms]) -> Size:
    """`combine` of the operands' terms; NotImplemented where one is neither Dim nor integer."""
    try:
        a, b = _terms(first), _terms(second)
    except TypeError:
        return NotImplemented  # type: ignore[no-any-return]
    return size_of(combine(a, b))


def _sum(a: _Terms, b: _Terms, sign: int) -> _Terms:
    return {product: a.get(product, 0) + sign * b.get(product, 0) for product in {**a, **b}}


def _product(a: _Terms, b: _Terms) -> _Terms:
    total: dict[Monomial, int] = {}
    for first, m in a.items():
        for second, n in b.items():
            product = tuple(sorted(first + second))
            total[product] = total.get(product, 0) + m * n
    return total


def _quotient(a: _Terms, b: _Terms) -> _Terms:
    """Long division by leading terms; it ends, for leading terms fall."""
    quotient: dict[Monomial, int] = {}
    rest = {product: count for product, count in a.items() if count}
    divisor = {product: count for product, count in b.items() if count}
    if not divisor:
        raise ZeroDivisionError(f"dimension: {size_of(a)} divided by 0.")
    lead = max(divisor, key=_degree)
    while rest:
        top = max(rest, key=_degree)
        part = _without(top, lead)
        if part is None or rest[top] % divisor[lead]:
            raise GraphError(
                "dimension: a division must be exact for every size. "
                f"Received: {size_of(a)} // {size_of(b)}. Make the size a multiple of it."
            )
        quotient[part] = rest[top] // divisor[lead]
        taken = _product({part: quotient[part]}, divisor)
        rest = {key: count for key, count in _sum(rest, taken, -1).items() if count}
    return quotient


def _degree(product: Monomial) -> tuple[int, Monomial]:
    """By number of symbols, then by the symbols: an order that products keep."""
    return len(product), product


def _without(product: Monomial, factor: Monomial) -> Optional[Monomial]:
    left = list(product)
    for symbol in factor:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)


def parse_dim(text: str) -> Size:
    """The inverse of str() of a size: "8*(S<=128)+1". Raises GraphError on other text."""
    total: Size = 0
    for sign, term in re.findall(r"([+-]?)([^+-]+)", text.strip()):
        product: Size = 1 if sign != "-" else -1
        for factor in term.split("*"):
            match = _FACTOR.fullmatch(factor.strip())
            if match is None:
                raise GraphError(
                    f"dimension: text must look like 8*(S<=128)+1. Received: {text!r}. Correct it."
                )
            name, most = match["name"] or match["name2"], match["most"] or match["most2"]
            product *= Dim.symbol(name, int(most)) if name else int(match["number"])
        total += product
    return total


def parse_literal(text: str) -> Any:
    """The inverse of repr() of Python literals that may hold Dims, as attributes do.

    Raises:
        GraphError: the text of a Dim cannot be read.
        ValueError, SyntaxError: the text is no literal.
    """
    return ast.literal_eval(_Folded().visit(ast.parse(text.strip(), mode="eval")))


class _Folded(ast.NodeTransformer):
    """Puts Dims in place of the calls that make them."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "Dim" and not node.keywords:
            (given,) = node.args
            constant: Any = parse_dim(ast.literal_eval(given))
            return ast.copy_location(ast.Constant(constant), node)
        return node


def most_of(size: Size) -> int:
    """The upper bound of a size: the number itself, or a Dim's `most`."""
    return size.most if isinstance(size, Dim) else size


def least_of(size: Size) -> int:
    """The lower bound of a size: the number itself, or a Dim's `least`."""
    return size.least if isinstance(size, Dim) else size


def whole(number: Any) -> Size:
    """A size as an int or a Dim, whatever kind of integer it comes as; TypeError for others."""
    size: Size = number if isinstance(number, Dim) else operator.index(number)
    return size


def smaller(first: Size, second: Size) -> Size:
    """The smaller of two sizes; GraphError where that differs from batch to batch."""
    if is_at_most(first, second):
        return first
    if is_at_most(second, first):
        return second
    raise GraphError(
        f"dimension: one of two must be the smaller for every size. Received: {first} and "
        f"{second}. Give static shapes."
    )


def is_at_most(first: Size, second: Size) -> bool:
    """Whether the first is no larger than the second for every size of the symbols."""
    return least_of(second - first) >= 0


def symbols_of(sizes: Iterable[Any]) -> frozenset[Symbol]:
    """Symbols of all Dims among the entries."""
    return frozenset(s for size in sizes if isinstance(size, Dim) for s in size.symbols)
