"""Fuses layer normalization in any algebraic form.

Before: mean, squared differences, mean, rsqrt, products with gamma and beta in any order; after:
`%y, %mean, %rstd = layer_norm(%x, %gamma, %beta)`. The products are compared as polynomials, so
x*(r*g) + (b - m*(r*g)) and ((x - m)*r)*g + b are equal. The pass does not fire where the statistics
are of another axis than the last, or gamma or beta vary along another axis. Source: Ba, Kiros and
Hinton, Layer Normalization (2016), equation 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple, Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.rewrite import gradient_operands, rewrite

# A sum of products: {factors, in order of their ids: coefficient}.
Polynomial = dict[tuple[int, ...], float]
_MAX_TERMS = 4


def fuse_layer_norm(graph: Graph) -> None:
    """Replaces in place, before differentiation."""
    surroundings = _Surroundings(
        graph.users(), {node: i for i, node in enumerate(graph.nodes)}, gradient_operands(graph)
    )
    found: dict[Node, _Norm] = {}
    for node in graph.nodes:
        if node.op in ("rsqrt", "sqrt"):
            match = _Match(node, surroundings)
            norm = match.norm() if match.statistics() else None
            if norm is not None:
                found.setdefault(norm.node, norm)
    rewrite(graph, lambda b, node: [_emit(b, found[node])] if node in found else None, fold=False)


class _Surroundings(NamedTuple):
    users: dict[Value, list[Node]]
    place: dict[Node, int]
    differentiated: set[Value]


class _Norm(NamedTuple):
    """The node whose output is the norm of x [..., H], with gamma and beta [H]."""

    node: Node
    x: Value
    gamma: Value
    beta: Value
    epsilon: float


class _Match:
    def __init__(self, root: Node, surroundings: _Surroundings) -> None:
        self.around = surroundings
        self.root = root
        self.x: Optional[Value] = None
        self.mean: set[Value] = set()
        self.inner: set[Value] = set()  # between x and the root
        self.epsilon = 0.0

    def statistics(self) -> bool:
        """Whether the root is 1/sqrt(variance + epsilon) (or its inverse) over the last axis."""
        parts = split_epsilon(self.root.inputs[0])
        if parts is None:
            return False
        variance, self.epsilon = parts
        total = self.root.inputs[0]
        mean_square = mean_of_last(variance)
        if mean_square is None:
            return False
        difference = mean_square.node
        if difference is not None and difference.op == "square":
            difference = made_by(difference.inputs[0], "sub")
        elif difference is not None and difference.op == "mul":
            same = difference.inputs[0] is difference.inputs[1]
            difference = made_by(difference.inputs[0], "sub") if same else None
        elif difference is None or difference.op != "squared_difference":
            return False
        if difference is None:
            return False
        self.inner = {total, variance, mean_square, difference.output}
        self.x, mean = difference.inputs
        return self._is_mean(mean)

    def _is_mean(self, value: Value) -> bool:
        while value.node is not None and value.node.op in ("stop_gradient", "identity"):
            self.mean.add(value)
            value = value.node.inputs[0]
        self.mean.add(value)
        return self.x is not None and mean_of_last(value) is self.x

    def norm(self) -> Optional[_Norm]:
        """Finds the last reader that computes the norm."""
        assert self.x is not None
        self.atoms: dict[int, Value] = {}
        polynomials: dict[Value, Polynomial] = {self.x: self._atom(self.x)}
        kept = self.around.differentiated - {self.x}
        if (self.mean | self.inner | {self.root.output}) & kept:
            return None
        for value in self.mean:
            # A mean after stop_gradient is equivalent in the variance, whose derivative by it is
            # zero, but not in the difference.
            if value.node is not None and value.node.op != "stop_gradient":
                polynomials[value] = self._named("mean")
        inverse = self.root.op == "rsqrt"
        if inverse:
            polynomials[self.root.output] = self._named("r")
        best: Optional[_Norm] = None
        for node in self._readers(polynomials):
            if any(value in kept for value in node.inputs):
                continue
            polynomial = self._combine(node, polynomials, inverse)
            if polynomial is None:
                continue
            polynomials[node.output] = polynomial
            affine = self._affine(polynomial, node.output)
            if affine is not None:
                best = _Norm(node, self.x, *affine, self.epsilon)
        return best

    def _readers(self, known: dict[Value, Polynomial]) -> Iterator[Node]:
        """Nodes that read known values, in order; values may become known on the way."""
        place = self.around.place
        statistics = [self.root, *(value.node for value in self.mean if value.node)]
        begin = min(place[node] for node in statistics)
        waiting: list[int] = []
        at: dict[int, Node] = {}
        spread: list[Value] = list(known)
        while True:
            for value in spread:
                for node in self.around.users.get(value, ()):
                    if place[node] >= begin and place[node] not in at:
                        at[place[node]] = node
                        heapq.heappush(waiting, place[node])
            if not waiting:
                return
            node = at[heapq.heappop(waiting)]
            yield node
            spread = [value for value in node.outputs if value in known]

    def _atom(self, value: Value) -> Polynomial:
        self.atoms[id(value)] = value
        return {(id(value),): 1.0}

    def _named(self, name: str) -> Polynomial:
        return {(-1 if name == "mean" else -2,): 1.0}

    def _combine(
        self, node: Node, known: dict[Value, Polynomial], inverse: bool
    ) -> Optional[Polynomial]:
        """The node's value as a polynomial of known ones and vectors [H]."""
        if node.op not in ("add", "sub", "mul", "div", "neg", "identity") or node.outputs == []:
            return None
        if not any(value in known for value in node.inputs):
            return None
        if node.op == "div":
            if node.inputs[1] is not self.root.output or inverse or node.inputs[0] not in known:
                return None
            return _times(known[node.inputs[0]], self._named("r"))
        parts = []
        for value in node.inputs:
            polynomial = known.get(value)
            if polynomial is None:
                if not self._is_vector(value):
                    return None
                polynomial = self._atom(value)
            parts.append(polynomial)
        if node.op == "identity":
            return parts[0]
        if node.op == "neg":
            return _plus({}, parts[0], -1.0)
        if node.op == "mul":
            return _times(*parts)
        return _plus(parts[0], parts[1], 1.0 if node.op == "add" else -1.0)

    def _is_vector(self, value: Value) -> bool:
        assert self.x is not None
        return is_vector(value, self.x)

    def _affine(self, polynomial: Polynomial, output: Value) -> Optional[tuple[Value, Value]]:
        """(gamma, beta) if the polynomial is x r gamma - mean r gamma + beta."""
        assert self.x is not None
        if len(polynomial) != 3 or output.type != self.x.type:
            return None
        scaled = [key for key in polynomial if len(key) == 3]
        plain = [key for key in polynomial if len(key) == 1]
        if len(scaled) != 2 or len(plain) != 1 or polynomial[plain[0]] != 1.0:
            return None
        gammas = set()
        for key in scaled:
            rest = [factor for factor in key if factor not in (-1, -2, id(self.x))]
            of_x, of_mean = id(self.x) in key, -1 in key
            if len(rest) != 1 or -2 not in key or of_x == of_mean:
                return None
            if polynomial[key] != (1.0 if of_x else -1.0):
                return None
            gammas.add((rest[0], of_x))
        if len(gammas) != 2 or len({gamma for gamma, _ in gammas}) != 1:
            return None
        if plain[0][0] in (-1, -2, id(self.x)):
            return None
        return self.atoms[gammas.pop()[0]], self.atoms[plain[0][0]]


def _emit(b: Builder, norm: _Norm) -> Value:
    vectors = [
        value if value.type.rank == 1 else b.op("reshape", value, shape=norm.x.shape[-1:])
        for value in (norm.gamma, norm.beta)
    ]
    y, _, _ = b.multi("layer_norm", norm.x, *vectors, epsilon=norm.epsilon)
    return y


def made_by(value: Value, op: str) -> Optional[Node]:
    """The node that produces a value, if its op is `op`."""
    node = value.node
    return node if node is not None and node.op == op else None


def is_vector(value: Value, x: Value) -> bool:
    """Whether a value [H] or [..., 1, H] is broadcast to x [..., H] along the other axes."""
    width = x.shape[-1]
    return value.type.is_static and value.type.size == width and value.shape[-1:] == (width,)


def split_epsilon(value: Value) -> Optional[tuple[Value, float]]:
    """(x, c), if the value is the sum of x and a constant c."""
    total = made_by(value, "add")
    if total is None:
        return None
    x, constant = total.inputs
    if constant.constant is None:
        x, constant = constant, x
    if constant.constant is None or constant.constant.size != 1:
        return None
    return x, float(constant.constant.reshape(()))


def mean_of_last(value: Value) -> Optional[Value]:
    """x, if the value is the mean of x over its last axis with keepdims."""
    node = made_by(value, "mean")
    if node is None or not node.attrs["keepdims"]:
        return None
    x = node.inputs[0]
    return x if tuple(node.attrs["axes"]) == (x.type.rank - 1,) else None


def _plus(a: Polynomial, b: Polynomial, factor: float) -> Optional[Polynomial]:
    total = dict(a)
    for key, coefficient in b.items():
        total[key] = total.get(key, 0.0) + factor * coefficient
    total = {key: coefficient for key, coefficient in total.items() if coefficient}
    return total if len(total) <= _MAX_TERMS else None


def _times(a: Polynomial, b: Polynomial) -> Optional[Polynomial]:
    product: Polynomial = {}
    for key, x in a.items():
        for other, y in b.items():
            joined = tuple(sorted(key + other))
            product[joined] = product.get(joined, 0.0) + x * y
    return product if len(product) <= _MAX_TERMS else None
