"""Plain kernels of scaled dot-product attention: the definitions.

Letters: B batch, S query length, T key length, A heads, G heads of keys and values, each of which
A / G heads of queries read, D head width. The plain forms hold all scores [B, A, S, T], the
compiled ones do not.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.half_precision import as_bfloat16_operand, flush_subnormals
from cerebras_tf.kernels.random import random_uniform
from cerebras_tf.kernels.registry import plain

Pair = tuple[np.ndarray, np.ndarray]
# Above it, in rows all of whose keys a large bias hides, float32 rounds log(sum(e^scores)) too much
# to recover probabilities from it, so that they are normalized again.
ROUNDED_LSE = np.float32(1e3)
Triple = tuple[np.ndarray, np.ndarray, np.ndarray]


class Dropout(NamedTuple):
    """Dropout of the attention probabilities.

    Attributes:
        step: number of earlier invocations.
        seeds: int64 [2], of the random_uniform that draws float32 numbers [B, A, S, T].
        rate: probabilities whose number is below it become 0.
        kept_scale: factor of the others, usually 1 / (1 - rate).
    """

    step: int
    seeds: np.ndarray
    rate: float
    kept_scale: float


def bias_and_dropout(
    extra: tuple[np.ndarray, ...], attrs: dict[str, Any]
) -> tuple[Optional[np.ndarray], Optional[Dropout]]:
    """(bias, dropout) from the optional operands [bias] [step, seeds] and attributes, or None."""
    if not attrs:
        return (extra[0] if extra else None), None
    *bias, step, seeds = extra
    return (bias[0] if bias else None), Dropout(int(step), seeds, **attrs)


def _kept(
    dropout: Optional[Dropout], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Optional[np.ndarray]:
    """Multipliers of probabilities [B, A, S, T]: kept_scale or 0."""
    if dropout is None:
        return None
    numbers = random_uniform(dropout.step, dropout.seeds, shape=shape, dtype="float32")
    kept = numbers >= np.float32(dropout.rate)
    return np.where(kept, dtype.type(dropout.kept_scale), dtype.type(0))


def _drop(x: np.ndarray, kept: Optional[np.ndarray]) -> np.ndarray:
    """x [B, A, S, T] scaled where kept, else 0; this function is its own derivative."""
    if kept is None:
        return x
    return np.where(kept != 0, x * kept.astype(x.dtype), x.dtype.type(0))


def _product(sizes: str, x: np.ndarray, y: np.ndarray, compute: Optional[str]) -> np.ndarray:
    """einsum; with compute="bfloat16", operands are rounded as in matmul."""
    if compute is None:
        return np.asarray(np.einsum(sizes, x, y))
    return flush_subnormals(np.einsum(sizes, as_bfloat16_operand(x), as_bfloat16_operand(y)))


class Softmax(NamedTuple):
    """What is done with scores.

    Attributes:
        scale: usually 1 / sqrt(D).
        causal: whether query i sees keys j <= i + (T - S) only.
        bias: broadcasts to [B, A, S, T], or None.
        kept: [B, A, S, T], dropout's multipliers of probabilities, or None.
        compute: "bfloat16" rounds the operands of products: q, k, v, dout, probabilities after
            dropout, and derivatives of scores.
    """

    scale: float
    causal: bool
    bias: Optional[np.ndarray]
    kept: Optional[np.ndarray]
    compute: Optional[str]


def _scores(q: np.ndarray, k: np.ndarray, softmax: Softmax) -> np.ndarray:
    """[B, A, S, T], -Inf where the mask hides a key."""
    scale, causal, bias, _, compute = softmax
    scores = _product("bsad,btad->bast", q, k, compute) * q.dtype.type(scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        queries, keys = scores.shape[2:]
        visible = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
        scores = np.where(visible, scores, q.dtype.type(-np.inf))
    return scores


@plain("attention")
def attention(q, k, v, *extra, scale, causal, compute=None, **dropout):
    """dropout(softmax(scale q k^T + bias)) v for every head (Vaswani et al., 2017, eq. 1).

    Args:
        q: [B, S, A, D].
        k: [B, T, G, D].
        v: [B, T, G, D].
        extra: optional bias that broadcasts to [B, A, S, T]; with dropout the step, int64 [], and
            the seeds, int64 [2].
        scale: usually 1 / sqrt(D).
        causal: query i sees keys j <= i + (T - S) only, so that the last query sees all.
        compute: "bfloat16" rounds the operands of products (see Softmax).
        dropout: rate and kept_scale (see Dropout), or neither.

    Returns:
        out [B, S, A, D], and log(sum(e^scores)) [B, A, S].
    """
    return attend(q, k, v, _softmax_of(q, k, extra, dropout, scale, causal, compute))


def _repeated(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Keys or values of every head of the query: [B, T, G, D] as [B, T, A, D]."""
    return np.repeat(x, q.shape[2] // x.shape[2], axis=2)


def _sum_groups(dx: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The derivative of _repeated: [B, T, A, D] summed to [B, T, G, D]."""
    return dx.reshape(*x.shape[:3], -1, x.shape[3]).sum(axis=3) if dx.shape != x.shape else dx


def _softmax_of(
    q: np.ndarray,
    k: np.ndarray,
    extra: tuple[np.ndarray, ...],
    dropout: dict[str, Any],
    scale: float,
    causal: bool,
    compute: Optional[str],
) -> Softmax:
    bias, dropped = bias_and_dropout(extra, dropout)
    shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    return Softmax(scale, causal, bias, _kept(dropped, shape, q.dtype), compute)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, softmax: Softmax) -> Pair:
    """attention's results."""
    k, v = (_repeated(x, q) for x in (k, v))
    scores = _scores(q, k, softmax)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - top)
    total = e.sum(axis=-1, keepdims=True)
    p = _drop(e / total, softmax.kept)
    out = _product("bast,btad->bsad", p, v, softmax.compute)
    return out, (top + np.log(total))[..., 0]


@plain("attention_grad")
def attention_grad(dout, q, k, v, out, lse, *extra, scale, causal, compute=None, **dropout):
    """Derivatives of attention's out: dq [B, S, A, D], dk [B, T, G, D], dv [B, T, G, D].

    Args are the cotangent dout, attention's arguments, and its results out and lse.
    """
    softmax = _softmax_of(q, k, extra, dropout, scale, causal, compute)
    return attend_backward(dout, q, k, v, out, lse, softmax)


def attend_backward(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    softmax: Softmax,
) -> Triple:
    """attention_grad's results."""
    kept, compute = softmax.kept, softmax.compute
    keys, values = k, v
    k, v = (_repeated(x, q) for x in (k, v))
    p = np.exp(_scores(q, k, softmax) - lse[..., None])
    if np.any(np.abs(lse) > ROUNDED_LSE):
        p /= p.sum(axis=-1, keepdims=True)
    dp = _drop(_product("bsad,btad->bast", dout, v, compute), kept)
    # sum(p dp) = sum(dropped p, dout v^T): the same with dropout and without. It is dout out, too,
    # but not if that was computed from rounded probabilities.
    if compute is None:
        along = np.einsum("bsad,bsad->bas", dout, out)[..., None]
    else:
        along = (p * dp).sum(axis=-1, keepdims=True)
    ds = p * (dp - along) * q.dtype.type(softmax.scale)
    dq = _product("bast,btad->bsad", ds, k, compute)
    dk = _product("bast,bsad->btad", ds, q, compute)
    dv = _product("bast,bsad->btad", _drop(p, kept), dout, compute)
    return dq, _sum_groups(dk, keys), _sum_groups(dv, values)
