"""Plain kernels of scaled dot-product attention: the definitions.

Letters: B batch, S query length, T key length, A heads, D head width. The plain forms deliberately
hold all scores [B, A, S, T]; the compiled ones never do.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from cerebras_tf.kernels.registry import plain

Pair = tuple[np.ndarray, np.ndarray]
Triple = tuple[np.ndarray, np.ndarray, np.ndarray]


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
def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    bias: Optional[np.ndarray] = None,
    *,
    scale: float,
    causal: bool,
) -> Pair:
    """softmax(scale q k^T + bias) v for every head (Vaswani et al., 2017, eq. 1).

    Args:
        q: [B, S, A, D].
        k: [B, T, A, D].
        v: [B, T, A, D].
        bias: added to the scores; broadcasts to [B, A, S, T].
        scale: usually 1 / sqrt(D).
        causal: query i sees keys j <= i + (T - S) only, so that the last query sees all.

    Returns:
        out [B, S, A, D], and log(sum(e^scores)) [B, A, S].
    """
    scores = _scores(q, k, bias, scale, causal)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - top)
    total = e.sum(axis=-1, keepdims=True)
    return np.einsum("bast,btad->bsad", e / total, v), (top + np.log(total))[..., 0]


@plain("attention_grad")
def attention_grad(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    bias: Optional[np.ndarray] = None,
    *,
    scale: float,
    causal: bool,
) -> Triple:
    """Derivatives of attention's out: dq [B, S, A, D], dk [B, T, A, D], dv [B, T, A, D].

    Args:
        dout: [B, S, A, D] cotangent of out.
        q, k, v, bias, scale, causal: as given to attention.
        out: [B, S, A, D] and lse: [B, A, S], as attention returned them.
    """
    p = np.exp(_scores(q, k, bias, scale, causal) - lse[..., None])
    dp = np.einsum("bsad,btad->bast", dout, v)
    along = np.einsum("bsad,bsad->bas", dout, out)[..., None]
    ds = p * (dp - along) * q.dtype.type(scale)
    dq = np.einsum("bast,btad->bsad", ds, k)
    dk = np.einsum("bast,bsad->btad", ds, q)
    return dq, dk, np.einsum("bast,bsad->btad", p, dout)
