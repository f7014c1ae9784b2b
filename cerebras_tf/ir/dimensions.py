"""Symbolic sizes: dimensions that differ from batch to batch, up to a bound.

A symbol has two bounds: memory is planned for sizes up to `bound`, and decisions of the compiler
(such as that a slice stays inside a table) hold for sizes up to `limit`.

A `Dim` is a polynomial with integer coefficients over symbols. It is not an int on purpose: code
that needs a number (`range`, `np.zeros(shape)`, `<`) raises UnknownSizeError.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Union

from cerebras_tf.errors import GraphError, SizeLimitError, UnknownSizeError


@dataclass(frozen=True, order=True)
class Symbol:
    """A size that differs from batch to batch, from 1 to `bound`.

    Attributes:
        bound: the largest size that memory is planned for.
        limit: the largest value that `bound` may be raised to; `bound` by default.
    """

    name: str
    bound: int
    limit: int = 0

    def __post_init__(self) -> None:
        if not self.limit:
            object.__setattr__(self, "limit", self.bound)
        if not _NAME.fullmatch(self.name) or not 1 <= self.bound <= self.limit:
            raise GraphError(
                "symbol: the name must be an identifier, the bound at least 1 and not above the "
                f"limit. Received: {self.name!r}, {self.bound}, {self.limit}. Correct them."
            )

    def with_bound(self, bound: int) -> Symbol:
        """The same symbol with another `bound`; raises GraphError beyond the limit."""
        return Symbol(self.name, bound, self.limit)

    def __str__(self) -> str:
        if self.limit == self.bound:
            return f"{self.name}<={self.bound}"
        limit = "?" if self.limit == UNLIMITED else self.limit
        return f"{self.name}<={self.bound}<={limit}"


# Symbols of one product, sorted, as often as they stand in it; () is the constant term.
Monomial = tuple[Symbol, ...]
# The limit of a symbol that may have any size.
UNLIMITED = 1 << 62
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FACTOR = re.compile(
    r"(?P<number>\d+)|(?P<open>\()?(?P<name>[A-Za-z_]\w*)<=(?P<bound>\d+)(<=(?P<limit>\d+|\?))?"
    r"(?(open)\))",
    re.ASCII,
)


def _unknown(dim: Dim, *operands: Any) -> NoReturn:
    raise UnknownSizeError(
        f"dimension {dim}: must be a number here. Received: a size that differs from batch to "
        "batch. Use its bounds, or use a static shape."
    )


class Dim:
    """A size that depends on the batch, such as `8*S + 1` with S from 1 to 128.

    Dims are equal where their polynomials are. Arithmetic returns an int where the result depends
    on no symbol. `parse_dim` reads back the text of `str`: `8*(S<=128)+1`.
    """

    __slots__ = ("_hash", "symbols", "terms")
    # NumPy defers arithmetic with a Dim to the Dim.
    __array_ufunc__ = None
    terms: tuple[tuple[Monomial, int], ...]
    symbols: frozenset[Symbol]

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        """A polynomial: coefficients by product of symbols, at least one of which has a symbol.

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
                "dimension: a symbolic one needs symbols, with one bound each. "
                f"Received: {kept}. Use an int, or another name."
            )
        object.__setattr__(self, "terms", tuple(kept))
        object.__setattr__(self, "symbols", frozenset(symbols))
        object.__setattr__(self, "_hash", hash(self.terms))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Dim is immutable.")

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim, (dict(self.terms),)

    @staticmethod
    def symbol(name: str, bound: int, limit: int = 0) -> Dim:
        """The size of one symbol: `Dim.symbol("S", 128)`; see Symbol."""
        return Dim({(Symbol(name, bound, limit),): 1})

    @property
    def bound(self) -> int:
        """An upper bound over the sizes that memory is planned for."""
        return self._extreme(True, {symbol.name: symbol.bound for symbol in self.symbols})

    @property
    def max(self) -> int:
        """An upper bound over all sizes up to the limits."""
        return self._extreme(True, {symbol.name: symbol.limit for symbol in self.symbols})

    @property
    def min(self) -> int:
        """A lower bound over all sizes up to the limits."""
        return self.min_within({symbol.name: symbol.limit for symbol in self.symbols})

    def min_within(self, limits: Mapping[str, int]) -> int:
        """A lower bound over sizes up to other limits, given for every symbol."""
        return self._extreme(False, limits)

    def _extreme(self, upper: bool, limits: Mapping[str, int]) -> int:
        """A bound: positive terms are largest at the limits, negative ones at 1."""
        return sum(
            count * (math.prod(limits[s.name] for s in product) if (count > 0) is upper else 1)
            for product, count in self.terms
        )

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number for given sizes; GraphError where a symbol has none, or not in [1, bound]."""
        for symbol in self.symbols if len(self.symbols) == 1 else sorted(self.symbols):
            size = sizes.get(symbol.name)
            if size is None or not 1 <= size <= symbol.bound:
                raise GraphError(
                    f"dimension {self}: {symbol.name} must be in [1, {symbol.bound}]. "
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
        """True where no size makes it 0; else raises UnknownSizeError."""
        if self.min > 0 or self.max < 0:
            return True
        _unknown(self)

    if not TYPE_CHECKING:  # mypy must not accept a Dim for an int
        __index__ = __int__ = __float__ = __round__ = _unknown
        __lt__ = __le__ = __gt__ = __ge__ = _unknown
        __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = _unknown
        __pow__ = __rpow__ = __abs__ = _unknown

    def __add__(self, other: Any) -> Size:
        return _combined(self, other, lambda a, b: _sum(a, b, 1))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Size:
        return _combined(self, other, lambda a, b: _sum(a, b, -1))

    def __rsub__(self, other: Any) -> Size:
        return _combined(other, self, lambda a, b: _sum(a, b, -1))

    def __mul__(self, other: Any) -> Size:
        return _combined(self, other, _product)

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return -1 * self

    def __floordiv__(self, other: Any) -> Size:
        """The exact quotient; raises GraphError if it is not exact for all sizes."""
        return _combined(self, other, _quotient)

    def __rfloordiv__(self, other: Any) -> Size:
        return _combined(other, self, _quotient)

    def __str__(self) -> str:
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return str(self.terms[0][0][0])
        text = ""
        for product, count in self.terms:
            factors = [f"({symbol})" for symbol in product]
            if abs(count) != 1 or not factors:
                factors.insert(0, str(abs(count)))
            text += ("-" if count < 0 else "+" if text else "") + "*".join(factors)
        return text

    def __repr__(self) -> str:
        return f"Dim('{self}')"


Size = Union[int, Dim]
_Terms = Mapping[Monomial, int]


def size_of(terms: Mapping[Monomial, int]) -> Size:
    """A polynomial as a size: an int if it has no symbol."""
    left = {product: count for product, count in terms.items() if count}
    if any(left):
        return Dim(left)
    return left.get((), 0)


def _terms(value: Any) -> _Terms:
    return dict(value.terms) if isinstance(value, Dim) else {(): operator.index(value)}


def _combined(first: Any, second: Any, combine: Callable[[_Terms, _Terms], _Terms]) -> Size:
    """Combines the terms of two operands.

    Returns NotImplemented where one is not a number, raises UnknownSizeError where not an integer.
    """
    try:
        a, b = _terms(first), _terms(second)
    except TypeError:
        if isinstance(first, Number) or isinstance(second, Number):
            _unknown(first if isinstance(first, Dim) else second)
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
    """Long division by leading terms in graded lexicographic order."""
    quotient: dict[Monomial, int] = {}
    rest = {product: count for product, count in a.items() if count}
    divisor = {product: count for product, count in b.items() if count}
    if not divisor:
        raise ZeroDivisionError(f"dimension: {size_of(a)} divided by 0.")
    lead = max(divisor, key=lambda product: (len(product), product))
    while rest:
        top = max(rest, key=lambda product: (len(product), product))
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
            if match["number"]:
                product *= int(match["number"])
            else:
                limit = UNLIMITED if match["limit"] == "?" else int(match["limit"] or 0)
                product *= Dim.symbol(match["name"], int(match["bound"]), limit)
        total += product
    return total


def parse_literal(text: str) -> Any:
    """The inverse of repr() of Python literals that may hold Dims.

    Raises:
        GraphError: the text of a Dim cannot be read.
        ValueError, SyntaxError: the text is no literal.
    """
    return ast.literal_eval(_Folded().visit(ast.parse(text.strip(), mode="eval")))


class _Folded(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "Dim" and not node.keywords:
            (given,) = node.args
            constant: Any = parse_dim(ast.literal_eval(given))
            return ast.copy_location(ast.Constant(constant), node)
        return node


def bound_of(size: Size) -> int:
    """The upper bound of a size that memory is planned for."""
    return size.bound if isinstance(size, Dim) else size


def min_of(size: Size) -> int:
    """The lower bound of a size."""
    return size.min if isinstance(size, Dim) else size


def max_of(size: Size) -> int:
    """The upper bound of a size up to the limits."""
    return size.max if isinstance(size, Dim) else size


def whole(number: Any) -> Size:
    """Converts any kind of integer to an int, and keeps a Dim; raises TypeError for others."""
    size: Size = number if isinstance(number, Dim) else operator.index(number)
    return size


def smaller(first: Size, second: Size) -> Size:
    """The smaller of two sizes.

    Raises:
        SizeLimitError: one is the smaller for all sizes up to lower limits.
        GraphError: which one is smaller differs from batch to batch.
    """
    for check in (is_at_most, ensure_at_most):
        if check(first, second):
            return first
        if check(second, first):
            return second
    raise GraphError(
        f"dimension: one of two must be the smaller for every size. Received: {first} and "
        f"{second}. Give static shapes."
    )


def is_at_most(first: Size, second: Size) -> bool:
    """Whether the first is at most the second for every size up to the limits."""
    return min_of(second - first) >= 0


def ensure_at_most(first: Size, second: Size) -> bool:
    """As is_at_most, but raises SizeLimitError, with the limits, where lower ones make it true."""
    gap = second - first
    if isinstance(gap, int) or gap.min >= 0:
        return min_of(gap) >= 0
    limits = _limits(gap)
    if limits is None:
        return False
    raise SizeLimitError(
        f"dimension: {first} must be at most {second} for every size. Received: sizes up to the "
        f"limits of their symbols. Lower the limits to {limits}.",
        limits,
    )


def _limits(gap: Dim) -> Optional[dict[str, int]]:
    """The highest limits for which a size is not negative, or None."""
    limits = {symbol.name: symbol.limit for symbol in gap.symbols}
    for symbol in sorted(gap.symbols):
        low, high = symbol.bound, symbol.limit
        if gap.min_within({**limits, symbol.name: low}) < 0:
            limits[symbol.name] = low
            continue
        while low < high:
            middle = (low + high + 1) // 2
            fits = gap.min_within({**limits, symbol.name: middle}) >= 0
            low, high = (middle, high) if fits else (low, middle - 1)
        return {**limits, symbol.name: low}
    return None
