"""Compiled softmax cross-entropy with the output projection, float32, in chunks of tokens.

Letters: N tokens, H width, V vocabulary, C tokens of a chunk. Logits exist for one chunk at a time
and become their own gradient in place, so that [N, V] is never stored (as in Wijmans et al., Cut
Your Losses in Large-Vocabulary Language Models, 2024, by tokens). The backward pass recomputes
logits, or computes both passes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from cerebras_tf.kernels import blas, compiled_bfloat16
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import as_matrix, floats_are_float32
from cerebras_tf.kernels.compiled_loss import label_vector
from cerebras_tf.kernels.compiled_math import log
from cerebras_tf.kernels.compiled_reduction import exp_in_place, row_max, sum_of_exp
from cerebras_tf.kernels.compiled_threads import parallel_for
from cerebras_tf.kernels.registry import Scratch, compiled
from cerebras_tf.kernels.scratch import borrow, round_up

F = np.float32
Out = tuple[np.ndarray, ...]
# Bytes of a chunk's logits. Larger chunks add into the weight's gradient less often, smaller ones
# need less memory: for width 768 and vocabulary 50257, 32 MB reach 78 % of sgemm's speed, 64 MB 90
# %, 128 MB 95 %, 256 MB 96 %; 200 MB make two chunks of 2048 tokens.
_CHUNK_BYTES = 200 << 20
# Of a larger vocabulary, a chunk has this many tokens within more bytes: every chunk packs the
# weight and adds into its gradient. For width 2048 and vocabulary 128256, 1024 tokens at once take
# 2.1 s of processor time on a Xeon with AMX, in two chunks 3.0 and in three 3.5.
_CHUNK_TOKENS, _MOST_BYTES = 1024, 600 << 20


def _num_chunks(tokens: int, vocabulary: int) -> int:
    row = 4 * max(1, vocabulary)
    size = min(max(_CHUNK_BYTES, _CHUNK_TOKENS * row), max(_CHUNK_BYTES, _MOST_BYTES))
    return -(-tokens // max(1, size // row))


def _longest_chunk(tokens: int, vocabulary: int) -> int:
    return -(-tokens // max(1, _num_chunks(tokens, vocabulary)))


def _scratch(
    *types: Any, transpose_weight: bool, compute: Optional[str] = None, first: int = 0
) -> Scratch:
    """Logits of a chunk, its weighted hidden states, one or two numbers per token, and the GEMM's
    scratch."""
    hidden, weight = types[first : first + 2]
    (tokens, width), vocabulary = hidden.shape, weight.shape[0 if transpose_weight else 1]
    chunk = _longest_chunk(tokens, vocabulary)
    weighted = chunk * width if first else 0
    own = round_up(4 * chunk * vocabulary) + 4 * weighted + 8 * tokens
    rows, columns = (vocabulary, width) if transpose_weight else (width, vocabulary)
    products = []
    for part in {chunk, tokens // max(1, _num_chunks(tokens, vocabulary))}:  # and the shortest
        products.append((part, width, vocabulary))
        if first:
            products += [(part, vocabulary, width), (rows, part, columns)]
    if compute is None:
        return Scratch(own + max(blas.scratch_bytes(*sizes, 4) for sizes in products))
    return Scratch(own + max(compiled_bfloat16.scratch_bytes(*sizes) for sizes in products))


def _scratch_of_gradient(
    *types: Any, transpose_weight: bool, compute: Optional[str] = None, weight_gradient: bool = True
) -> Scratch:
    return _scratch(*types, transpose_weight=transpose_weight, compute=compute, first=1)


def _supports(*operands: Any, compute: Optional[str] = None, **attrs: Any) -> bool:
    """Whether floats are float32; with bfloat16 products, the weight may be stored in bfloat16."""
    kept = [x for x in operands if compute is None or x.dtype != "bfloat16"]
    return floats_are_float32(*kept)


@jit(any_order=True)
def _loss_rows(start, stop, logits, bias, labels, dloss, loss, lse, weights, differentiate):
    """Loss of every row; if `differentiate`, the row becomes its gradient divided by `weights`.

    The gradient of logit j is dloss (p_j - [j is the label]). With p = e / total the row holds e_j
    - total [j is the label], and weights[i] = dloss / total is applied to the products. Bias and
    dloss may be empty, for none.
    """
    for i in range(start, stop):
        row = logits[i]
        if bias.size:
            for j in range(row.size):
                row[j] += bias[j]
        top = row_max(row)
        target = row[labels[i]] - top
        total = exp_in_place(row, top) if differentiate else sum_of_exp(row, top)
        shift = log(total)
        lse[i] = top + shift
        loss[i] = shift - target
        if differentiate:
            row[labels[i]] -= total
            weights[i] = dloss[i] / total


class _Projection:
    """The operands in the layout that chunks need, and their products."""

    def __init__(
        self,
        h: np.ndarray,
        weight: np.ndarray,
        labels: np.ndarray,
        bias: Optional[np.ndarray],
        transpose_weight: bool,
        compute: Optional[str] = None,
    ) -> None:
        self.h = h if h.ndim == 2 and h.strides[1] == h.itemsize else np.ascontiguousarray(h)
        self.columns = weight.T if transpose_weight else weight  # [H, V]
        self.transposed = transpose_weight
        self.labels = label_vector(labels, self.columns.shape[1])
        self.bias = np.empty(0, F) if bias is None else as_matrix(bias)[0]
        self.vocabulary = self.columns.shape[1]
        self._product = blas.gemm if compute is None else compiled_bfloat16.gemm

    def chunks(self) -> Iterator[slice]:
        """Ranges of tokens of nearly equal length whose logits fit into _CHUNK_BYTES."""
        tokens = len(self.h)
        count = _num_chunks(tokens, self.vocabulary)
        for i in range(count):
            yield slice(tokens * i // count, tokens * (i + 1) // count)

    def logits_shape(self) -> tuple[int, int]:
        """Shape of the largest chunk's logits."""
        return _longest_chunk(len(self.h), self.vocabulary), self.vocabulary

    def logits(self, chunk: slice, buffer: np.ndarray) -> np.ndarray:
        """Logits of a chunk without bias, in `buffer`."""
        rows = buffer[: chunk.stop - chunk.start]
        self._product(self.h[chunk], self.columns, rows)
        return rows

    def states_gradient(self, rows: np.ndarray, out: np.ndarray) -> None:
        """out [C, H] = rows [C, V] times the weight."""
        self._product(rows, self.columns.T, out)

    def add_weight_gradient(
        self, dweight: np.ndarray, weighted: np.ndarray, rows: np.ndarray, first: bool
    ) -> None:
        """dweight (+)= the product of a chunk's rows and its weighted hidden states [C, H]."""
        a, b = (rows.T, weighted) if self.transposed else (weighted.T, rows)
        self._product(a, b, dweight, add=not first)


@compiled("linear_softmax_xent", _supports, _scratch, reads_bfloat16=True)
def linear_softmax_xent(h, weight, labels, bias=None, *, out, transpose_weight, compute=None):
    """linear_softmax_xent into loss [N], lse [N]."""
    loss, lse = out
    model = _Projection(h, weight, labels, bias, transpose_weight, compute)
    no_cotangent = np.empty(0, F)
    with borrow(model.logits_shape()) as buffer:
        for chunk in model.chunks():
            rows = model.logits(chunk, buffer)
            parallel_for(
                _loss_rows,
                len(rows),
                rows.size,
                rows,
                model.bias,
                model.labels[chunk],
                no_cotangent,
                loss[chunk],
                lse[chunk],
                no_cotangent,
                False,
            )


@compiled("linear_softmax_xent_train", _supports, _scratch_of_gradient, reads_bfloat16=True)
def linear_softmax_xent_train(
    dloss,
    h,
    weight,
    labels,
    bias=None,
    *,
    out,
    transpose_weight,
    compute=None,
    weight_gradient=True,
):
    """linear_softmax_xent_train into loss [N], dh [N, H], dweight if it is wanted, and dbias [V] if
    biased."""
    loss, dh = out[:2]
    dweight = out[2] if weight_gradient else np.empty(0, F)
    model = _Projection(h, weight, labels, bias, transpose_weight, compute)
    scales = as_matrix(dloss).reshape(-1)
    lse, weights = np.empty(len(loss), F), np.empty(len(loss), F)
    if not len(loss):
        dweight[...] = 0
    if bias is not None:
        out[-1][...] = 0
    longest, _ = model.logits_shape()
    with borrow(model.logits_shape()) as buffer, borrow((longest, h.shape[1])) as weighted:
        for chunk in model.chunks():
            rows = model.logits(chunk, buffer)
            parallel_for(
                _loss_rows,
                len(rows),
                3 * rows.size,
                rows,
                model.bias,
                model.labels[chunk],
                scales[chunk],
                loss[chunk],
                lse[chunk],
                weights[chunk],
                True,
            )
            weight_of = weights[chunk, None]
            model.states_gradient(rows, dh[chunk])
            dh[chunk] *= weight_of
            if weight_gradient:
                states = np.multiply(model.h[chunk], weight_of, out=weighted[: len(rows)])
                model.add_weight_gradient(dweight, states, rows, chunk.start == 0)
            if bias is not None:
                blas.gemm(weight_of.T, rows, out[-1][None], add=True)


@compiled("linear_softmax_xent_grad", _supports, _scratch_of_gradient, reads_bfloat16=True)
def linear_softmax_xent_grad(dloss, h, weight, labels, lse, bias=None, *, out, **attrs):
    """linear_softmax_xent_grad into dh [N, H], dweight if it is wanted, and dbias [V] if biased.

    Logits and log(sum(e^logits)) are recomputed; lse is not read.
    """
    loss = np.empty(len(h), F)
    linear_softmax_xent_train(dloss, h, weight, labels, bias, out=(loss, *out), **attrs)
