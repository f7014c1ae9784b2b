"""Ops that become other ops before they are lowered: PyTorch's own decompositions, and ours.

Composite ops are decomposed as PyTorch does for its own gradients, if they have no rule. Of other
ops, a decomposition must have the op's gradient everywhere: also where the derivative jumps, and
where a branch that is not taken overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])
# By the name of the op, as in registry.RULES.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}
# Ops without a rule whose decomposition in PyTorch has the op's gradient.
_NAMES = """
    _prelu_kernel _safe_softmax _unsafe_index_put _unsafe_masked_index _upsample_nearest_exact1d
    _upsample_nearest_exact2d addmv addr affine_grid_generator aminmax baddbmm
    binary_cross_entropy block_diag channel_shuffle col2im copysign.Scalar copysign.Tensor
    count_nonzero count_nonzero.dim_IntList deg2rad diag_embed eye eye.m frac glu
    grid_sampler_2d hann_window hardshrink heaviside huber_loss im2col index_add index_copy
    index_fill.int_Scalar isin.Scalar_Tensor isin.Tensor_Scalar
    isin.Tensor_Tensor isneginf isposinf linalg_cross linspace logaddexp logaddexp2 logit
    logspace logsumexp mish multi_margin_loss nan_to_num nansum native_group_norm
    pixel_shuffle pixel_unshuffle rad2deg reflection_pad1d reflection_pad2d replication_pad1d
    replication_pad2d roll rot90 sgn smooth_l1_loss soft_margin_loss softshrink take threshold
    upsample_bicubic2d upsample_bicubic2d.vec
    upsample_bilinear2d upsample_bilinear2d.vec upsample_linear1d.vec upsample_nearest1d.vec
    upsample_nearest2d.vec _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec
    upsample_linear1d upsample_nearest1d
    upsample_nearest2d
"""
OF_PYTORCH = {f"aten.{name if '.' in name else f'{name}.default'}" for name in _NAMES.split()}
# Loops over time are not unrolled.
KEPT = {
    f"aten.{name}.{overload}"
    for name in ("gru", "lstm", "rnn_relu", "rnn_tanh")
    for overload in ("data", "input")
}


def decomposes(*ops: str) -> Callable[[Function], Function]:
    """Registers a function of PyTorch in place of ops, written as in registry.lowers."""

    def register(function: Function) -> Function:
        for op in ops:
            DECOMPOSITIONS[f"aten.{op if '.' in op else f'{op}.default'}"] = function
        return function

    return register


# Activations.


@decomposes("elu")
def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    below = torch.expm1(torch.where(x > 0, 0.0, x) * input_scale) * (alpha * scale)
    return torch.where(x > 0, x * scale, below)


@decomposes("celu")
def _celu(x: Tensor, alpha: float = 1) -> Tensor:
    return _elu(x, alpha, 1, 1 / alpha)


@decomposes("hardtanh")
def _hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return torch.where(x <= min_val, min_val, torch.where(x >= max_val, max_val, x))


@decomposes("hardsigmoid")
def _hardsigmoid(x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(x >= 3, 1.0, x / 6 + 0.5))


@decomposes("hardswish")
def _hardswish(x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(x >= 3, x, x * (x + 3) / 6))


@decomposes("rrelu")
def _rrelu(
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Tensor:
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    return torch.where(x <= 0, x * (torch.rand_like(x) * (upper - lower) + lower), x)


@decomposes("uniform")
def _uniform(x: Tensor, *limits: float, generator: Any = None, **named: float) -> Tensor:
    given = {"from": 0.0, "to": 1.0, **dict(zip(("from", "to"), limits)), **named}
    first, end = given["from"], given["to"]
    return torch.rand_like(x) * (end - first) + first


# Arithmetic.


@decomposes("xlogy.Tensor")
def _xlogy(x: Tensor, other: Tensor) -> Tensor:
    """0 where x is 0, also of an infinite number; its gradient is then finite."""
    most = torch.finfo(other.dtype if other.is_floating_point() else torch.float32).max
    finite = torch.where(other > most, most, other)
    return x * torch.log(torch.where(x == 0, torch.where(other <= 0, 1.0, finite), other))


@decomposes("trunc")
def _trunc(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.floor(torch.abs(x)) if x.is_floating_point() else x


@decomposes("exp2")
def _exp2(x: Tensor) -> Tensor:
    return torch.exp(x * math.log(2))


@decomposes("log2")
def _log2(x: Tensor) -> Tensor:
    return torch.log(x) / math.log(2)


@decomposes("log10")
def _log10(x: Tensor) -> Tensor:
    return torch.log(x) / math.log(10)


@decomposes("hypot")
def _hypot(x: Tensor, other: Tensor) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(torch.broadcast_tensors(x, other)), dim=0)


@decomposes("sinc")
def _sinc(x: Tensor) -> Tensor:
    angle = torch.where(x == 0, 1.0, x) * math.pi
    return torch.where(x == 0, 1.0, torch.sin(angle) / angle)


@decomposes("fmax")
def _fmax(x: Tensor, other: Tensor) -> Tensor:
    return torch.where(other.isnan(), x, torch.where(x.isnan(), other, torch.maximum(x, other)))


@decomposes("fmin")
def _fmin(x: Tensor, other: Tensor) -> Tensor:
    return torch.where(other.isnan(), x, torch.where(x.isnan(), other, torch.minimum(x, other)))


@decomposes("logical_xor")
def _logical_xor(x: Tensor, other: Tensor) -> Tensor:
    return x.bool() != other.bool()


@decomposes("bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar")
def _left_shift(x: Tensor, other: int) -> Tensor:
    return x * 2**other


@decomposes("bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar")
def _right_shift(x: Tensor, other: int) -> Tensor:
    return x // 2**other


@decomposes("bucketize.Tensor")
def _bucketize(
    x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    column = x.unsqueeze(-1)
    found = boundaries <= column if right else boundaries < column
    return found.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


@decomposes("searchsorted.Tensor")
def _searchsorted(
    sorted_sequence: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Optional[str] = None,
    sorter: Optional[Tensor] = None,
) -> Tensor:
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    rows = sorted_sequence if sorted_sequence.dim() == 1 else sorted_sequence.unsqueeze(-2)
    return _bucketize(x, rows, out_int32=out_int32, right=right or side == "right")


# Reductions.


@decomposes("std.correction")
def _std(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    """The gradient where all elements are equal is 0."""
    variance = torch.var(
        x, dim, correction=1 if correction is None else correction, keepdim=keepdim
    )
    flat = variance == 0
    return torch.where(flat, 0.0, torch.sqrt(torch.where(flat, 1.0, variance)))


@decomposes("std_mean.correction")
def _std_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _std(x, dim, correction=correction, keepdim=keepdim), x.mean(dim, keepdim)


@decomposes("var_mean.correction")
def _var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    found = torch.var(x, dim, correction=1 if correction is None else correction, keepdim=keepdim)
    return found, x.mean(dim, keepdim)


@decomposes("norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype")
def _norm(
    x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, **dtype: torch.dtype
) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim, **dtype)


@decomposes("trace")
def _trace(x: Tensor) -> Tensor:
    return x.diagonal().sum()


@decomposes("cdist")
def _cdist(x1: Tensor, x2: Tensor, p: float = 2, compute_mode: Optional[int] = None) -> Tensor:
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, dim=-1)


@decomposes("cumprod")
def _cumprod(x: Tensor, dim: int, *, dtype: Optional[torch.dtype] = None) -> Tensor:
    """Products of rows of a triangle, whose gradients are right where an element is 0."""
    last = (x if dtype is None else x.to(dtype)).transpose(dim, -1)
    positions = torch.arange(last.shape[-1])
    factors = torch.where(positions <= positions.unsqueeze(-1), last.unsqueeze(-2), 1.0)
    return factors.prod(-1).transpose(dim, -1)


@decomposes("argsort", "argsort.stable")
def _argsort(x: Tensor, dim: int = -1, descending: bool = False, **stable: bool) -> Tensor:
    return torch.sort(x, dim=dim, descending=descending)[1]


def _extremes(name: str, argument: Callable[..., Tensor]) -> None:
    @decomposes(f"{name}.dim")
    def extreme(x: Tensor, dim: int, keepdim: bool = False) -> Any:
        index = argument(x, dim=dim, keepdim=True)
        values = torch.gather(x, dim, index)
        return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


_extremes("max", torch.argmax)
_extremes("min", torch.argmin)


def _ranked(x: Tensor, place: int, dim: int, keepdim: bool) -> Any:
    if not x.dim():
        return x, torch.zeros_like(x, dtype=torch.int64)
    values, index = (part.narrow(dim, place, 1) for part in torch.sort(x, dim=dim))
    return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


@decomposes("median.dim")
def _median(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _ranked(x, (x.shape[dim] - 1) // 2 if x.dim() else 0, dim, keepdim)


@decomposes("kthvalue")
def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return _ranked(x, k - 1, dim, keepdim)


# Positions.


@decomposes("diagonal")
def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = moved.shape[-2:]
    first = max(-offset, 0) * columns + max(offset, 0)
    count = max(0, min(rows - max(-offset, 0), columns - max(offset, 0)))
    positions = torch.arange(count) * (columns + 1) + first
    return moved.flatten(-2).index_select(-1, positions)


@decomposes("unfold")
def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if not x.dim():
        return x.reshape(1)[:size]
    axis = dimension % x.dim()
    count = (x.shape[axis] - size) // step + 1
    positions = torch.arange(count).unsqueeze(1) * step + torch.arange(size)
    found = x.index_select(axis, positions.flatten())
    return found.unflatten(axis, (count, size)).movedim(axis + 1, -1)


@decomposes("scatter_reduce.two")
def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Without include_self, elements that are reduced into count as absent."""
    if reduce not in ("sum", "mean"):
        return NotImplemented
    count = torch.scatter_add(torch.zeros_like(x), dim, index, torch.ones_like(src))
    start = x if include_self else torch.where(count > 0, 0.0, x)
    total = torch.scatter_add(start, dim, index, src)
    if reduce == "sum":
        return total
    return total / (count + 1 if include_self else torch.where(count > 0, count, 1.0))
