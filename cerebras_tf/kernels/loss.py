"""Plain kernels of softmax cross-entropy, with and without the output projection: definitions.

Letters: N tokens, V vocabulary, H width. The plain forms of the fused ops hold all logits at once;
the compiled ones do not.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from cerebras_tf.kernels.gather_scatter import check_indices
from cerebras_tf.kernels.matmul import matmul
from cerebras_tf.kernels.registry import plain

Pair = tuple[np.ndarray, np.ndarray]


def _log_sum_exp(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    return (top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)))[..., 0]


@plain("sparse_softmax_xent")
def sparse_softmax_xent(logits, labels):
    """loss = log(sum(e^logits)) - logits[label].

    Args:
        logits: [N, V].
        labels: [N] integers.

    Returns:
        loss [N], and log(sum(e^logits)) [N].

    Raises:
        BoundsError: a label is not in [0, V).
    """
    check_indices(labels, logits.shape[-1], "softmax cross-entropy", "labels")
    lse = _log_sum_exp(logits)
    return lse - logits[np.arange(labels.size), labels], lse


@plain("sparse_softmax_xent_grad")
def sparse_softmax_xent_grad(dloss, logits, labels, lse):
    """dlogits [N, V] = (softmax(logits) - one_hot(labels)) dloss, with lse as returned."""
    check_indices(labels, logits.shape[-1], "softmax cross-entropy", "labels")
    dlogits = np.exp(logits - lse[:, None])
    dlogits[np.arange(labels.size), labels] -= 1
    return dlogits * dloss[:, None]


@plain("softmax_xent")
def softmax_xent(logits, labels):
    """loss [N] = sum(labels (log(sum(e^logits)) - logits)) for labels [N, V] of any weights."""
    return (labels * (_log_sum_exp(logits)[:, None] - logits)).sum(axis=-1)


@plain("softmax_xent_grad")
def softmax_xent_grad(dloss, logits, labels):
    """dlogits [N, V] = (softmax(logits) - labels) dloss, TensorFlow's backprop output.

    It is the derivative if each row of labels sums to 1.
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
def linear_softmax_xent(h, weight, labels, bias=None, *, transpose_weight, compute=None):
    """sparse_softmax_xent of logits = h weight + bias.

    Args:
        h: [N, H].
        weight: [V, H] if transpose_weight, else [H, V].
        labels: [N] integers.
        bias: [V].

        transpose_weight: whether the weight is [V, H].
        compute: "bfloat16" rounds the operands of products, as matmul does.

    Returns:
        loss [N], and log(sum(e^logits)) [N].

    Raises:
        BoundsError: a label is not in [0, V).
    """
    return sparse_softmax_xent(_project(h, weight, bias, transpose_weight, compute), labels)


@plain("linear_softmax_xent_grad")
def linear_softmax_xent_grad(
    dloss,
    h,
    weight,
    labels,
    lse,
    bias=None,
    *,
    transpose_weight,
    compute=None,
    weight_gradient=True,
):
    """Derivatives of linear_softmax_xent's loss: dh [N, H], dweight if it is wanted, and dbias [V]
    if biased."""
    logits = _project(h, weight, bias, transpose_weight, compute)
    if compute is None:
        rows, factors = sparse_softmax_xent_grad(dloss, logits, labels, lse), np.ones_like(dloss)
    else:  # rounded before they are divided by the sum of the exponentials
        top = logits.max(axis=-1)
        rows = sparse_softmax_xent_grad(np.exp(lse - top), logits, labels, lse)
        factors = dloss * np.exp(top - lse)
    dh = matmul(rows, weight, transpose_b=not transpose_weight, compute=compute) * factors[:, None]
    found = [dh]
    if weight_gradient:
        weighted = h * factors[:, None]
        left, right = (rows, weighted) if transpose_weight else (weighted, rows)
        found.append(matmul(left, right, transpose_a=True, compute=compute))
    return (*found,) if bias is None else (*found, factors @ rows)


@plain("linear_softmax_xent_train")
def linear_softmax_xent_train(
    dloss, h, weight, labels, bias=None, *, transpose_weight, compute=None, weight_gradient=True
):
    """Loss and derivatives in one pass: loss [N], and what linear_softmax_xent_grad returns."""
    given: dict[str, Any] = {"transpose_weight": transpose_weight, "compute": compute}
    loss, lse = linear_softmax_xent(h, weight, labels, bias, **given)
    given["weight_gradient"] = weight_gradient
    return (loss, *linear_softmax_xent_grad(dloss, h, weight, labels, lse, bias, **given))
