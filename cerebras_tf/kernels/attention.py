"""Plain kernels of scaled dot-product attention: the definitions.

Letters: B batch, S query length, T key length, A heads, D head width. The plain forms hold all
scores [B, A, S, T]; the compiled ones do not.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.random import random_uniform
from cerebras_tf.kernels.registry import plain

Pair = tuple[np.ndarray, np.ndarray]
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


def _scores(
    q: np.ndarray, k: np.ndarray, bias: Optional[np.ndarray], scale: float, causal: bool
) -> np.ndarray:
    """[B, A, S, T], -Inf where the mask hides a key."""
    scores = np.einsum("bsad,btad->bast", q, k) * q.dtype.type(scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        queries, keys = scores.shape[2:]
        visible = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
        scores = np.where(visible, scores, q.dtype.type(-np.inf))
    return scores


@plain("attention")
def attention(q, k, v, *extra, scale, causal, **dropout):
    """dropout(softmax(scale q k^T + bias)) v for every head (Vaswani et al., 2017, eq. 1).

    Args:
        q: [B, S, A, D].
        k: [B, T, A, D].
        v: [B, T, A, D].
        extra: optional bias that broadcasts to [B, A, S, T]; with dropout the step, int64 [], and
            the seeds, int64 [2].
        scale: usually 1 / sqrt(D).
        causal: query i sees keys j <= i + (T - S) only, so that the last query sees all.
        dropout: rate and kept_scale (see Dropout), or neither.

    Returns:
        out [B, S, A, D], and log(sum(e^scores)) [B, A, S].
    """
    bias, dropped = bias_and_dropout(extra, dropout)
    shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    return attend(q, k, v, bias, _kept(dropped, shape, q.dtype), scale, causal)


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    bias: Optional[np.ndarray],
    kept: Optional[np.ndarray],
    scale: float,
    causal: bool,
) -> Pair:
    """attention's results; `kept` [B, A, S, T] are dropout's multipliers, or None."""
    scores = _scores(q, k, bias, scale, causal)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - top)
    total = e.sum(axis=-1, keepdims=True)
    p = _drop(e / total, kept)
    return np.einsum("bast,btad->bsad", p, v), (top + np.log(total))[..., 0]


@plain("attention_grad")
def attention_grad(dout, q, k, v, out, lse, *extra, scale, causal, **dropout):
    """Derivatives of attention's out: dq [B, S, A, D], dk [B, T, A, D], dv [B, T, A, D].

    Args are the cotangent dout, attention's arguments, and its results out and lse.
    """
    bias, dropped = bias_and_dropout(extra, dropout)
    shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    kept = _kept(dropped, shape, q.dtype)
    return attend_backward(dout, q, k, v, out, lse, bias, kept, scale, causal)


def attend_backward(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    bias: Optional[np.ndarray],
    kept: Optional[np.ndarray],
    scale: float,
    causal: bool,
) -> Triple:
    """attention_grad's results; `kept` as for `attend`."""
    p = np.exp(_scores(q, k, bias, scale, causal) - lse[..., None])
    dp = _drop(np.einsum("bsad,btad->bast", dout, v), kept)
    # sum(p dp) = sum(dropped p, dout v^T): the same with dropout and without.
    along = np.einsum("bsad,bsad->bas", dout, out)[..., None]
    ds = p * (dp - along) * q.dtype.type(scale)
    dq = np.einsum("bast,btad->bsad", ds, k)
    dk = np.einsum("bast,bsad->btad", ds, q)
    return dq, dk, np.einsum("bast,bsad->btad", _drop(p, kept), dout)
