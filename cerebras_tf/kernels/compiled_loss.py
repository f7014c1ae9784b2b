"""Compiled softmax cross-entropy on logits, float32. Letters: N tokens, V vocabulary.

compiled_linear_cross_entropy.py has the forms that project to logits first.
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import as_matrix, floats_are_float32
from cerebras_tf.kernels.compiled_math import exp, log
from cerebras_tf.kernels.compiled_reduction import exp_into, row_max, sum_of_exp
from cerebras_tf.kernels.compiled_threads import parallel_for
from cerebras_tf.kernels.gather_scatter import check_indices
from cerebras_tf.kernels.registry import compiled

F = np.float32
Out = tuple[np.ndarray, ...]


def label_vector(labels: np.ndarray, classes: int) -> np.ndarray:
    """Labels as contiguous int64 [N], each checked to lie in [0, classes)."""
    check_indices(labels, classes, "softmax cross-entropy", "labels")
    return np.array(labels, np.int64).reshape(-1)


@jit(any_order=True)
def _sparse_rows(start, stop, logits, labels, loss, lse):
    for i in range(start, stop):
        row = logits[i]
        top = row_max(row)
        total = sum_of_exp(row, top)
        lse[i] = top + log(total)
        loss[i] = log(total) - (row[labels[i]] - top)


@compiled("sparse_softmax_xent", supports=floats_are_float32)
def sparse_softmax_xent(logits, labels, *, out):
    """sparse_softmax_xent of logits [N, V] into loss [N], lse [N]."""
    rows = as_matrix(logits)
    parallel_for(
        _sparse_rows, len(rows), rows.size, rows, label_vector(labels, rows.shape[1]), *out
    )


@jit(any_order=True)
def _sparse_grad_rows(start, stop, dloss, logits, labels, lse, dlogits):
    for i in range(start, stop):
        row = logits[i]
        out = dlogits[i]
        shift = lse[i]
        scale = dloss[i]
        for j in range(row.size):
            out[j] = exp(row[j] - shift) * scale
        out[labels[i]] -= scale


@compiled("sparse_softmax_xent_grad", supports=floats_are_float32)
def sparse_softmax_xent_grad(dloss, logits, labels, lse, *, out):
    """sparse_softmax_xent_grad into dlogits [N, V]."""
    rows = as_matrix(logits)
    names = label_vector(labels, rows.shape[1])
    scales, shifts = as_matrix(dloss).reshape(-1), as_matrix(lse).reshape(-1)
    parallel_for(_sparse_grad_rows, len(rows), 2 * rows.size, scales, rows, names, shifts, out[0])


@jit(any_order=True)
def _dense_rows(start, stop, logits, labels, loss):
    for i in range(start, stop):
        row = logits[i]
        target = labels[i]
        top = row_max(row)
        total = sum_of_exp(row, top)
        shift = log(total)
        cost = F(0)
        for j in range(row.size):
            d = row[j] - top
            cost += target[j] * (shift - d)
        loss[i] = cost


@compiled("softmax_xent", supports=floats_are_float32)
def softmax_xent(logits, labels, *, out):
    """softmax_xent of logits and labels [N, V] into loss [N]."""
    rows = as_matrix(logits)
    parallel_for(_dense_rows, len(rows), 2 * rows.size, rows, as_matrix(labels), out[0])


@jit(any_order=True)
def _dense_grad_rows(start, stop, dloss, logits, labels, dlogits):
    for i in range(start, stop):
        row = logits[i]
        target = labels[i]
        out = dlogits[i]
        scale = dloss[i]
        top = row_max(row)
        total = exp_into(row, top, out)
        inverse = F(1) / total
        for j in range(row.size):
            out[j] = (out[j] * inverse - target[j]) * scale


@compiled("softmax_xent_grad", supports=floats_are_float32)
def softmax_xent_grad(dloss, logits, labels, *, out):
    """softmax_xent_grad into dlogits [N, V]."""
    rows = as_matrix(logits)
    scales = as_matrix(dloss).reshape(-1)
    parallel_for(
        _dense_grad_rows, len(rows), 3 * rows.size, scales, rows, as_matrix(labels), out[0]
    )
