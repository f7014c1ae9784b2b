"""Plain kernels of softmax cross-entropy, with and without the output projection: definitions.

Letters: N tokens, V vocabulary, H width. The plain forms of the fused ops hold all logits at once;
the compiled ones never do.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import BoundsError
from cerebras_tf.kernels.matmul import matmul
from cerebras_tf.kernels.registry import plain

Pair = tuple[np.ndarray, np.ndarray]


def check_labels(labels: np.ndarray, classes: int) -> None:
    """Raises BoundsError, naming the first, where a label is not in [0, classes)."""
    if not labels.size or (labels.min() >= 0 and labels.max() < classes):
        return
    at = int(np.flatnonzero((labels < 0) | (labels >= classes))[0])
    raise BoundsError(
        f"softmax cross-entropy: labels must lie in [0, {classes}). Received: {labels.flat[at]} "
        f"at position {at} of {labels.size}. Correct the labels or the vocabulary size."
    )


def _log_sum_exp(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    return (top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)))[..., 0]


@plain("sparse_softmax_xent")
def sparse_softmax_xent(logits: np.ndarray, labels: np.ndarray) -> Pair:
    """loss = log(sum(e^logits)) - logits[label].

    Args:
        logits: [N, V].
        labels: [N] integers.

    Returns:
        loss [N], and log(sum(e^logits)) [N].

    Raises:
        BoundsError: a label is not in [0, V).
    """
    check_labels(labels, logits.shape[-1])
    lse = _log_sum_exp(logits)
    return lse - logits[np.arange(labels.size), labels], lse


@plain("sparse_softmax_xent_grad")
def sparse_softmax_xent_grad(
    dloss: np.ndarray, logits: np.ndarray, labels: np.ndarray, lse: np.ndarray
) -> np.ndarray:
    """dlogits [N, V] = (softmax(logits) - one_hot(labels)) dloss, with lse as returned."""
    check_labels(labels, logits.shape[-1])
    dlogits = np.exp(logits - lse[:, None])
    dlogits[np.arange(labels.size), labels] -= 1
    return dlogits * dloss[:, None]


@plain("softmax_xent")
def softmax_xent(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """loss [N] = sum(labels (log(sum(e^logits)) - logits)) for labels [N, V] of any weights."""
    return (labels * (_log_sum_exp(logits)[:, None] - logits)).sum(axis=-1)


@plain("softmax_xent_grad")
def softmax_xent_grad(dloss: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """dlogits [N, V] = (softmax(logits) - labels) dloss, TensorFlow's backprop output.

    It is the derivative where each row of labels sums to 1.
    """
    return (np.exp(logits - _log_sum_exp(logits)[:, None]) - labels) * dloss[:, None]


def _project(
    h: np.ndarray,
    weight: np.ndarray,
    bias: Optional[np.ndarray],
    transpose_weight: bool,
    compute: Optional[str],
) -> np.ndarray:
    logits = matmul(h, weight, transpose_b=transpose_weight, compute=compute)
    return logits if bias is None else logits + bias


@plain("linear_softmax_xent")
def linear_softmax_xent(
    h: np.ndarray,
    weight: np.ndarray,
    labels: np.ndarray,
    bias: Optional[np.ndarray] = None,
    *,
    transpose_weight: bool,
    compute: Optional[str] = None,
) -> Pair:
    """sparse_softmax_xent of logits = h weight + bias.

    Args:
        h: [N, H].
        weight: [V, H] if transpose_weight, else [H, V].
        labels: [N] integers.
        bias: [V].
        transpose_weight: how the weight lies.
        compute: "bfloat16" rounds the operands of products, as matmul does.

    Returns:
        loss [N], and log(sum(e^logits)) [N].

    Raises:
        BoundsError: a label is not in [0, V).
    """
    return sparse_softmax_xent(_project(h, weight, bias, transpose_weight, compute), labels)


@plain("linear_softmax_xent_grad")
def linear_softmax_xent_grad(
    dloss: np.ndarray,
    h: np.ndarray,
    weight: np.ndarray,
    labels: np.ndarray,
    lse: np.ndarray,
    bias: Optional[np.ndarray] = None,
    *,
    transpose_weight: bool,
    compute: Optional[str] = None,
) -> tuple[np.ndarray, ...]:
    """Derivatives of linear_softmax_xent's loss: dh [N, H], dweight, and dbias [V] if biased."""
    logits = _project(h, weight, bias, transpose_weight, compute)
    if compute is None:
        rows, factors = sparse_softmax_xent_grad(dloss, logits, labels, lse), np.ones_like(dloss)
    else:  # rounded before they are divided by the sum of the exponentials
        top = logits.max(axis=-1)
        rows = sparse_softmax_xent_grad(np.exp(lse - top), logits, labels, lse)
        factors = dloss * np.exp(top - lse)
    dh = matmul(rows, weight, transpose_b=not transpose_weight, compute=compute) * factors[:, None]
    weighted = h * factors[:, None]
    left, right = (rows, weighted) if transpose_weight else (weighted, rows)
    dweight = matmul(left, right, transpose_a=True, compute=compute)
    return (dh, dweight) if bias is None else (dh, dweight, factors @ rows)


@plain("linear_softmax_xent_train")
def linear_softmax_xent_train(
    dloss: np.ndarray,
    h: np.ndarray,
    weight: np.ndarray,
    labels: np.ndarray,
    bias: Optional[np.ndarray] = None,
    *,
    transpose_weight: bool,
    compute: Optional[str] = None,
) -> tuple[np.ndarray, ...]:
    """Loss and derivatives in one pass: loss [N], dh [N, H], dweight, and dbias [V] if biased."""
    given: dict[str, Any] = {"transpose_weight": transpose_weight, "compute": compute}
    loss, lse = linear_softmax_xent(h, weight, labels, bias, **given)
    return (loss, *linear_softmax_xent_grad(dloss, h, weight, labels, lse, bias, **given))
