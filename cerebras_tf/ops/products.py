"""Which matrix products an op consists of, for the model of a real system.

Scores and logits that a backward op recomputes do not count: a system may keep them. Letters: B
batch, S queries, T keys, A heads, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from cerebras_tf.ir import TensorType, bound_of
from cerebras_tf.ops.matmul import product_pairs

WEIGHTS = "weights"  # activations by weights
GRADIENT = "gradient"  # of weights: a sum over tokens
ACTIVATIONS = "activations"  # of two activations, as in attention


class ProductSize(NamedTuple):
    """Products [tokens, inputs] by [inputs, outputs].

    Attributes:
        kind: WEIGHTS, GRADIENT or ACTIVATIONS.
        tokens: rows of the activations; of a gradient, the summed dimension.
        inputs: rows of the weights.
        outputs: columns of the weights.
        times: independent products of this shape, such as one a head.
    """

    kind: str
    tokens: int
    inputs: int
    outputs: int
    times: int = 1


@dataclass(frozen=True)
class Places:
    """Types and attributes of an instruction; `weights` holds which operands are variables."""

    inputs: Sequence[TensorType]
    outputs: Sequence[TensorType]
    weights: Sequence[bool]
    attrs: dict[str, Any]


# (products of the forward pass, products of the backward pass) of an instruction.
Products = tuple[list[ProductSize], list[ProductSize]]


def _matmul(at: Places) -> list[ProductSize]:
    a, b = (sizes_at_bounds(type) for type in at.inputs)
    rows, inner = a[-2:][::-1] if at.attrs.get("transpose_a") else a[-2:]
    columns = b[-2] if at.attrs.get("transpose_b") else b[-1]
    many = math.prod(sizes_at_bounds(at.outputs[0])[:-2])
    if at.weights[1]:
        return [ProductSize(WEIGHTS, rows * many, inner, columns)]
    if at.weights[0]:
        return [ProductSize(WEIGHTS, columns * many, inner, rows)]
    if many == 1:
        return [ProductSize(GRADIENT, inner, rows, columns)]
    return [ProductSize(ACTIVATIONS, rows, inner, columns, many)]


def _grouped_matmul(at: Places) -> list[ProductSize]:
    lefts = at.attrs["lefts"]
    pairs = zip(product_pairs(at.inputs, lefts), product_pairs(at.weights, lefts))
    return [
        size
        for types, weights in pairs
        for size in _matmul(Places(types, at.outputs[:1], weights, at.attrs))
    ]


def _attention(at: Places, first: int = 0) -> list[ProductSize]:
    (batch, queries, heads, width), key = map(sizes_at_bounds, at.inputs[first : first + 2])
    tokens, keys = batch * queries, key[1]
    return [
        ProductSize(ACTIVATIONS, tokens, width, keys, heads),
        ProductSize(ACTIVATIONS, tokens, keys, width, heads),
    ]


def _linear(at: Places, first: int) -> tuple[ProductSize, ProductSize, ProductSize]:
    (tokens, width), weight = map(sizes_at_bounds, at.inputs[first : first + 2])
    vocabulary = math.prod(weight) // width
    return (
        ProductSize(WEIGHTS, tokens, width, vocabulary),
        ProductSize(WEIGHTS, tokens, vocabulary, width),
        ProductSize(GRADIENT, tokens, width, vocabulary),
    )


def _linear_backward(at: Places, given: int, losses: int = 0) -> list[ProductSize]:
    """Products of the gradients; a frozen weight has none. `given`: operands without a bias."""
    has_weight = len(at.outputs) - losses - (len(at.inputs) - given) == 2
    return list(_linear(at, 1)[1 : 3 if has_weight else 2])


def _filter(type: TensorType, depthwise: bool) -> tuple[int, int, int]:
    """(inputs, outputs, count) of the products with a filter [R, S, C, K or M]."""
    *window, channels, outputs = sizes_at_bounds(type)
    if depthwise:
        return math.prod(window), outputs, channels
    return math.prod(window) * channels, outputs, 1


def _pixels(type: TensorType) -> int:
    return math.prod(sizes_at_bounds(type)[:-1])


def _convolution(at: Places, depthwise: bool = False) -> list[ProductSize]:
    inputs, outputs, many = _filter(at.inputs[1], depthwise)
    return [ProductSize(WEIGHTS, _pixels(at.outputs[0]), inputs, outputs, many)]


def _convolution_input(at: Places, depthwise: bool = False) -> list[ProductSize]:
    inputs, outputs, many = _filter(at.inputs[0], depthwise)
    return [ProductSize(WEIGHTS, _pixels(at.inputs[1]), outputs, inputs, many)]


def _convolution_filter(at: Places, depthwise: bool = False) -> list[ProductSize]:
    inputs, outputs, many = _filter(at.outputs[0], depthwise)
    return [ProductSize(GRADIENT, _pixels(at.inputs[1]), inputs, outputs, many)]


_FORWARD: dict[str, Callable[[Places], list[ProductSize]]] = {
    "matmul": _matmul,
    "grouped_matmul": _grouped_matmul,
    "attention": _attention,
    "linear_softmax_xent": lambda at: [_linear(at, 0)[0]],
    "conv2d": _convolution,
    "conv2d_input_grad": _convolution_input,
    "conv2d_filter_grad": _convolution_filter,
    "depthwise_conv2d": lambda at: _convolution(at, True),
    "depthwise_conv2d_input_grad": lambda at: _convolution_input(at, True),
    "depthwise_conv2d_filter_grad": lambda at: _convolution_filter(at, True),
}
# Ops of the backward pass.
_BACKWARD: dict[str, Callable[[Places], Products]] = {
    "attention_grad": lambda at: ([], 2 * _attention(at, 1)),
    "linear_softmax_xent_grad": lambda at: ([], _linear_backward(at, 5)),
    "linear_softmax_xent_train": lambda at: ([_linear(at, 1)[0]], _linear_backward(at, 4, 1)),
}


def sizes_at_bounds(type: TensorType) -> tuple[int, ...]:
    """The largest sizes of a type; 1 where unknown."""
    return tuple(1 if dim is None else bound_of(dim) for dim in type.shape)


def products_of(op: str, at: Places, backward: bool) -> Optional[Products]:
    """The products of an instruction of a pass; None if it has none."""
    if op in _BACKWARD:
        return _BACKWARD[op](at)
    if op not in _FORWARD:
        return None
    found = _FORWARD[op](at)
    return ([], found) if backward else (found, [])
