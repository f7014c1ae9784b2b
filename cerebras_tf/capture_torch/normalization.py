"""Rules of reductions, softmax and normalization layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Optional, TypeVar

import numpy as np

from cerebras_tf.capture_torch.lowering import Lowering
from cerebras_tf.capture_torch.registry import lowers
from cerebras_tf.capture_torch.shapes import transposed
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value
from cerebras_tf.ops.shape import reshape
from cerebras_tf.ops.sizes import counts

Function = TypeVar("Function", bound=Callable[..., Any])


def axes_of(x: Value, dim: Any) -> tuple[int, ...]:
    """An argument `dim` as sorted axes; None and [] stand for all."""
    if dim is None or dim in ([], ()):
        return tuple(range(x.type.rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(sorted(axis % max(x.type.rank, 1) for axis in dims))


def _reduction(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(
        low: Lowering, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Value:
        return _reduced(low, op, low.value(x), dim, keepdim)


def _reduced(low: Lowering, op: str, x: Value, dim: Any, keepdim: bool) -> Value:
    if not x.type.rank:
        return x
    return low.b.op(op, x, axes=axes_of(x, dim), keepdims=keepdim)


_reduction("sum", "sum", "sum.dim_IntList")
_reduction("mean", "mean", "mean.dim")
_reduction("max", "amax", "max")
_reduction("min", "amin", "min")
_reduction("prod", "prod", "prod.dim_int")


@lowers("sum_to_size")
def _sum_to_size(low: Lowering, x: Value, size: Any) -> Value:
    """The sum over axes that `size` lacks, or has with size 1."""
    first = x.type.rank - len(low.shape)
    joined = [i for i, size in enumerate(low.shape, first) if size == 1 != x.shape[i]]
    axes = (*range(first), *joined)
    return reshape(low.b, low.b.op("sum", x, axes=axes, keepdims=False) if axes else x, low.shape)


def _truth(op: str) -> None:
    @lowers(op, f"{op}.dim")
    def rule(low: Lowering, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        return _reduced(low, op, low.value(x, "bool"), dim, keepdim)


_truth("all")
_truth("any")


@lowers("linalg_vector_norm")
def _vector_norm(low: Lowering, x: Value, ord: float, dim: Any, keepdim: bool, dtype: Any) -> Value:
    b, value = low.b, low.value(x)
    if ord == math.inf:
        return _reduced(low, "max", b.op("abs", value), dim, keepdim)
    if ord == -math.inf:
        return _reduced(low, "min", b.op("abs", value), dim, keepdim)
    if ord == 1:
        return _reduced(low, "sum", b.op("abs", value), dim, keepdim)
    if ord == 0:
        return _reduced(low, "sum", b.op("abs", b.op("sign", value)), dim, keepdim)
    if ord == 2:
        total = _reduced(low, "sum", b.op("square", value), dim, keepdim)
        return _at_zero(low, total, lambda x: b.op("sqrt", x))

    def powers(x: Value) -> Value:
        return b.op("pow", x, float(ord))

    at_zero = math.inf if ord < 0 else 0.0
    found = _at_zero(low, b.op("abs", value), powers, at_zero)
    total = _reduced(low, "sum", found, dim, keepdim)
    return _at_zero(low, total, lambda x: b.op("pow", x, 1 / ord), at_zero)


def _at_zero(
    low: Lowering, x: Value, function: Callable[[Value], Value], result: float = 0.0
) -> Value:
    """f(x) with f(0) = result, and 0 as the gradient there."""
    if not low.differentiates:
        return function(x)
    b = low.b
    is_zero = b.op("equal", x, b.constant(0.0, x.dtype))
    safe = b.op("select", is_zero, b.constant(1.0, x.dtype), x)
    return b.op("select", is_zero, b.constant(result, x.dtype), function(safe))


@lowers("_weight_norm")
def _weight_norm(low: Lowering, v: Value, g: Value, dim: int) -> Value:
    """v g / |v|, with norms over all axes but one; Salimans and Kingma (2016), equation 2."""
    b = low.b
    axes = tuple(axis for axis in range(v.type.rank) if dim == -1 or axis != dim % v.type.rank)
    norm = b.op("sqrt", b.op("sum", b.op("square", v), axes=axes, keepdims=True))
    return b.op("mul", v, b.op("div", g, norm))


@lowers("var.correction")
def _var(low: Lowering, x: Value, dim: Any, correction: Any, keepdim: bool) -> Value:
    b, axes = low.b, axes_of(x, dim)
    mean = b.op("mean", x, axes=axes, keepdims=True)
    total = b.op("sum", b.op("square", b.op("sub", x, mean)), axes=axes, keepdims=keepdim)
    count = x.type.with_shape(tuple(x.shape[axis] for axis in axes)).size
    freedom = 1 if correction is None else int(correction)
    if freedom > 1 and not isinstance(count, int):
        raise UnsupportedOpError(
            f"var: correction must be 0 or 1 over an open axis. Received: {freedom}."
        )
    # Without degrees of freedom the result is not finite, as in torch.
    divisor = max(count - freedom, 0) if isinstance(count, int) else count - freedom
    return b.op("div", total, counts(b, divisor, x.dtype))


@lowers("var", "var.dim")
def _sample_var(
    low: Lowering, x: Value, dim: Any = None, unbiased: bool = True, keepdim: bool = False
) -> Value:
    return _var(low, x, dim, int(unbiased), keepdim)


def _position(op: str) -> None:
    @lowers(op)
    def rule(low: Lowering, x: Value, dim: Optional[int], keepdim: bool) -> Value:
        rows = reshape(low.b, x, (None,)) if dim is None else x
        axis = 0 if dim is None else dim % x.type.rank
        return reshape(low.b, low.b.op(op, rows, axis=axis, dtype="int64"), low.shape)


_position("argmax")
_position("argmin")


@lowers("topk")
def _topk(low: Lowering, x: Value, k: Any, dim: int, largest: bool, sorted: Any) -> tuple[Any, ...]:
    """Of equal elements, the first come first."""
    b, order = low.b, list(range(max(x.type.rank, 1)))
    if not isinstance(k, int):
        raise UnsupportedOpError(
            f"{low.node.target}: the axis must have a fixed size. Received: {k}. Pad to one size."
        )
    order[dim], order[-1] = order[-1], order[dim]
    rows = transposed(low, x if x.type.rank else reshape(b, x, (1,)), order)
    found = b.multi("top_k", rows if largest else _reversed(low, rows), k=k, dtype="int64")
    values = found[0] if largest else _reversed(low, found[0])
    return tuple(reshape(b, transposed(low, y, order), low.shape) for y in (values, found[1]))


def _reversed(low: Lowering, x: Value) -> Value:
    """Numbers in reverse order; those of the result are x again. No integer overflows."""
    if x.type.is_floating:
        return low.b.op("neg", x)
    if x.dtype == "bool":
        return low.b.op("logical_not", x)
    return low.b.op("sub", low.b.constant(255 if x.dtype == "uint8" else -1, x.dtype), x)


@lowers("sort", "sort.stable")
def _sort(
    low: Lowering, x: Value, dim: int, descending: bool, stable: Any = None
) -> tuple[Any, ...]:
    size = x.shape[dim] if x.type.rank else 1
    return _topk(low, x, size, dim, descending, True)


@lowers("cumsum")
def _cumsum(low: Lowering, x: Value, dim: int, dtype: Any) -> Value:
    axis = dim % x.type.rank
    return low.b.op("cumsum", low.value(x), axis=axis, exclusive=False, reverse=False)


def _over_axis(low: Lowering, op: str, x: Value, dim: int) -> Value:
    """An op on the last axis, applied to another one."""
    order = list(range(x.type.rank))
    order[dim], order[-1] = order[-1], order[dim]
    return transposed(low, low.b.op(op, transposed(low, x, order)), order)


def _softmax(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Value, dim: int, dtype: Any) -> Value:
        return _over_axis(low, op, low.value(x), dim)


_softmax("softmax", "softmax.int")
_softmax("log_softmax", "log_softmax.int")


@lowers("_softmax")
def _inner_softmax(low: Lowering, x: Value, dim: int, half_to_float: bool) -> Value:
    return _over_axis(low, "softmax", low.value(x), dim)


@lowers("_log_softmax")
def _inner_log_softmax(low: Lowering, x: Value, dim: int, half_to_float: bool) -> Value:
    return _over_axis(low, "log_softmax", low.value(x), dim)


def _normalizes(*names: str) -> Callable[[Function], Function]:
    """As `lowers`. An input in half precision is normalized in the dtype of the weights."""

    def register(rule: Function) -> Function:
        @lowers(*names)
        @functools.wraps(rule)
        def mixed(low: Lowering, x: Value, **others: Any) -> Any:
            weight = others.get("weight")
            if weight is None:
                weight = others.get("running_mean")
            if weight is None or weight.dtype == x.dtype:
                return rule(low, x=x, **others)
            found = rule(low, x=low.value(x, weight.dtype), **others)
            if isinstance(found, Value):
                return low.value(found)
            return low.value(found[0]), *found[1:]

        return rule

    return register


@_normalizes("layer_norm")
def _layer_norm(
    low: Lowering,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Optional[Value],
    bias: Optional[Value],
    eps: float,
) -> Value:
    b, width = low.b, math.prod(normalized_shape)
    rows = x
    if len(normalized_shape) > 1:
        rows = reshape(b, x, (*x.shape[: -len(normalized_shape)], width))
    kind = rows.type.numpy_dtype
    gamma = b.constant(np.ones(width, kind)) if weight is None else reshape(b, weight, (width,))
    beta = b.constant(np.zeros(width, kind)) if bias is None else reshape(b, bias, (width,))
    return reshape(b, b.multi("layer_norm", rows, gamma, beta, epsilon=eps)[0], x.shape)


@_normalizes("rms_norm")
def _rms_norm(
    low: Lowering,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Optional[Value],
    eps: Optional[float],
) -> Value:
    """Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4."""
    b = low.b
    axes = tuple(range(x.type.rank - len(normalized_shape), x.type.rank))
    epsilon = float(np.finfo(x.type.numpy_dtype).eps) if eps is None else eps
    mean = b.op("mean", b.op("square", x), axes=axes, keepdims=True)
    result = b.op("mul", x, b.op("rsqrt", b.op("add", mean, epsilon)))
    return result if weight is None else b.op("mul", result, weight)


def _normalized(
    low: Lowering,
    x: Value,
    weight: Optional[Value],
    bias: Optional[Value],
    statistics: tuple[Value, Value],
    eps: float,
) -> Value:
    """Channels are axis 1; statistics are (mean, variance), each [1, C, 1, ...]."""
    b, (mean, variance) = low.b, statistics
    scale = b.op("rsqrt", b.op("add", variance, eps))
    result = b.op("mul", b.op("sub", x, mean), scale)
    if weight is not None:
        result = b.op("mul", result, reshape(b, weight, mean.shape))
    return result if bias is None else b.op("add", result, reshape(b, bias, mean.shape))


def _batch_statistics(low: Lowering, x: Value) -> tuple[Value, Value]:
    b, axes = low.b, tuple(axis for axis in range(x.type.rank) if axis != 1)
    mean = b.op("mean", x, axes=axes, keepdims=True)
    square = b.op("square", b.op("sub", x, mean))
    return mean, b.op("mean", square, axes=axes, keepdims=True)


def _in_channels(low: Lowering, x: Value, vector: Value) -> Value:
    return reshape(low.b, vector, (1, x.shape[1], *(1,) * (x.type.rank - 2)))


@_normalizes("_native_batch_norm_legit_functional")
def _batch_norm_functional(
    low: Lowering,
    x: Value,
    weight: Optional[Value],
    bias: Optional[Value],
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Returns the result, None twice, and the new running mean and variance."""
    if not training:
        running = _in_channels(low, x, running_mean), _in_channels(low, x, running_var)
        found = _normalized(low, x, weight, bias, running, eps)
        return found, None, None, running_mean, running_var
    b, (mean, variance) = low.b, _batch_statistics(low, x)
    result = _normalized(low, x, weight, bias, (mean, variance), eps)
    count = x.type.with_shape(tuple(d for i, d in enumerate(x.shape) if i != 1)).size
    total, less = counts(b, count, x.dtype), counts(b, count - 1, x.dtype)
    unbiased = b.op("div", b.op("mul", variance, total), less)

    def moved(old: Value, new: Value) -> Value:
        share = b.op("mul", reshape(b, new, old.shape), momentum)
        return b.op("add", b.op("mul", old, 1 - momentum), share)

    return result, None, None, moved(running_mean, mean), moved(running_var, unbiased)


@_normalizes("_native_batch_norm_legit_no_training")
def _batch_norm_inference(
    low: Lowering,
    x: Value,
    weight: Optional[Value],
    bias: Optional[Value],
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    running = _in_channels(low, x, running_mean), _in_channels(low, x, running_var)
    return _normalized(low, x, weight, bias, running, eps), None, None


@_normalizes("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit")
def _batch_norm_of_batch(
    low: Lowering,
    x: Value,
    weight: Optional[Value],
    bias: Optional[Value],
    training: bool,
    momentum: float,
    eps: float,
    running_mean: Optional[Value] = None,
    running_var: Optional[Value] = None,
) -> tuple[Any, ...]:
    if running_mean is not None or not training:
        raise UnsupportedOpError(
            "batch_norm: running statistics must be buffers of the model. Received: tensors."
        )
    return _normalized(low, x, weight, bias, _batch_statistics(low, x), eps), None, None


@_normalizes("batch_norm")
def _batch_norm(
    low: Lowering,
    x: Value,
    weight: Optional[Value],
    bias: Optional[Value],
    running_mean: Optional[Value],
    running_var: Optional[Value],
    training: bool,
    momentum: float,
    eps: float,
) -> Value:
    if training and running_mean is not None:
        raise UnsupportedOpError(
            "batch_norm: its running statistics must be written as buffers. Received: an op that "
            "writes them in place."
        )
    if running_mean is None or running_var is None:
        return _normalized(low, x, weight, bias, _batch_statistics(low, x), eps)
    running = _in_channels(low, x, running_mean), _in_channels(low, x, running_var)
    return _normalized(low, x, weight, bias, running, eps)


@_normalizes("group_norm")
def _group_norm(
    low: Lowering,
    x: Value,
    num_groups: int,
    weight: Optional[Value],
    bias: Optional[Value],
    eps: float,
) -> Value:
    b = low.b
    grouped = reshape(b, x, (x.shape[0], num_groups, None))
    mean = b.op("mean", grouped, axes=(2,), keepdims=True)
    centred = b.op("sub", grouped, mean)
    variance = b.op("mean", b.op("square", centred), axes=(2,), keepdims=True)
    result = b.op("mul", centred, b.op("rsqrt", b.op("add", variance, eps)))
    result = reshape(b, result, x.shape)
    if weight is not None:
        result = b.op("mul", result, _in_channels(low, x, weight))
    return result if bias is None else b.op("add", result, _in_channels(low, x, bias))
