"""Compiled softmax cross-entropy with the output projection, float32, in chunks of tokens.

Letters: N tokens, H width, V vocabulary, C tokens of a chunk. Logits exist for one chunk at a time
and become their own derivative in place. Matrix products are BLAS's, or those of
compiled_bfloat16.py; the row loops are compiled. No logits are kept for a later backward pass: they
are computed again, or forward and backward are asked for at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from cerebras_tf.kernels.bfloat16 import in_bfloat16
from cerebras_tf.kernels.blas import product, scratch_bytes
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import floats_are_float32, matrix
from cerebras_tf.kernels.compiled_loss import label_vector
from cerebras_tf.kernels.compiled_math import log
from cerebras_tf.kernels.compiled_row_reductions import exp_in_place, row_max, sum_of_exp
from cerebras_tf.kernels.compiled_threads import for_rows
from cerebras_tf.kernels.registry import Scratch, compiled
from cerebras_tf.kernels.scratch import borrowed, rounded

F = np.float32
Out = tuple[np.ndarray, ...]
# Logits of one chunk. A larger chunk adds into the weight's gradient less often, a smaller one
# needs less memory: for width 768 and vocabulary 50257, 32 MB reach 78 % of sgemm's speed, 64 MB
# 90 %, 128 MB 95 %, 256 MB 96 %; 200 MB make two chunks of 2048 tokens.
_CHUNK_BYTES = 200 << 20


def _chunk_count(tokens: int, vocabulary: int) -> int:
    most = max(1, _CHUNK_BYTES // (4 * max(1, vocabulary)))
    return -(-tokens // most)


def _longest_chunk(tokens: int, vocabulary: int) -> int:
    return -(-tokens // max(1, _chunk_count(tokens, vocabulary)))


def _scratch(
    *types: Any, transpose_weight: bool, compute: Optional[str] = None, first: int = 0
) -> Scratch:
    """Logits of a chunk, its weighted hidden states, and a number or two a token.

    Besides, what a product takes, in bfloat16 for packed operands.
    """
    hidden, weight = types[first : first + 2]
    (tokens, width), vocabulary = hidden.shape, weight.shape[0 if transpose_weight else 1]
    chunk = _longest_chunk(tokens, vocabulary)
    weighted = chunk * width if first else 0
    own = rounded(4 * chunk * vocabulary) + 4 * weighted + 8 * tokens
    packing = None if compute is None else in_bfloat16()
    rows, columns = (vocabulary, width) if transpose_weight else (width, vocabulary)
    products = []
    for part in {chunk, tokens // max(1, _chunk_count(tokens, vocabulary))}:  # and the shortest
        products.append((part, width, vocabulary))
        if first:
            products += [(part, vocabulary, width), (rows, part, columns)]
    if packing is None:
        return Scratch(own + max(scratch_bytes(*sizes, 4) for sizes in products))
    return Scratch(own + max(packing.scratch_bytes(*sizes) for sizes in products))


def _scratch_of_gradient(
    *types: Any, transpose_weight: bool, compute: Optional[str] = None
) -> Scratch:
    return _scratch(*types, transpose_weight=transpose_weight, compute=compute, first=1)


def _supports(*operands: Any, compute: Optional[str] = None, **attrs: Any) -> bool:
    return floats_are_float32(*operands) and (compute is None or in_bfloat16() is not None)


@jit(any_order=True)
def _loss_rows(start, stop, logits, bias, labels, dloss, loss, lse, weights, differentiate):
    """Loss of every row; where asked, the row becomes its derivative over `weights`.

    The derivative by logit j is dloss (p_j - [j is the label]); with p = e / total the row keeps
    e_j - total [j is the label], and weights[i] = dloss / total is left to the products. Bias and
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
    """The operands in the layout that the chunks want, and their products."""

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
        self.bias = np.empty(0, F) if bias is None else matrix(bias)[0]
        self.vocabulary = self.columns.shape[1]
        packing = None if compute is None else in_bfloat16()
        self._product = product if packing is None else packing.product

    def chunks(self) -> Iterator[slice]:
        """Ranges of tokens of nearly equal length whose logits stay within the limit."""
        tokens = len(self.h)
        count = _chunk_count(tokens, self.vocabulary)
        for i in range(count):
            yield slice(tokens * i // count, tokens * (i + 1) // count)

    def room(self) -> tuple[int, int]:
        """Shape of the memory for one chunk's logits."""
        return _longest_chunk(len(self.h), self.vocabulary), self.vocabulary

    def logits(self, chunk: slice, room: np.ndarray) -> np.ndarray:
        """Logits of a chunk without bias, in scratch memory."""
        rows = room[: chunk.stop - chunk.start]
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


@compiled("linear_softmax_xent", supports=_supports, scratch=_scratch)
def linear_softmax_xent(
    h: np.ndarray,
    weight: np.ndarray,
    labels: np.ndarray,
    bias: Optional[np.ndarray] = None,
    *,
    out: Out,
    transpose_weight: bool,
    compute: Optional[str] = None,
) -> None:
    """linear_softmax_xent into loss [N], lse [N]."""
    loss, lse = out
    model = _Projection(h, weight, labels, bias, transpose_weight, compute)
    no_cotangent = np.empty(0, F)
    with borrowed(model.room()) as room:
        for chunk in model.chunks():
            rows = model.logits(chunk, room)
            for_rows(
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


@compiled("linear_softmax_xent_train", supports=_supports, scratch=_scratch_of_gradient)
def linear_softmax_xent_train(
    dloss: np.ndarray,
    h: np.ndarray,
    weight: np.ndarray,
    labels: np.ndarray,
    bias: Optional[np.ndarray] = None,
    *,
    out: Out,
    transpose_weight: bool,
    compute: Optional[str] = None,
) -> None:
    """linear_softmax_xent_train into loss [N], dh [N, H], dweight, and dbias [V] if biased."""
    loss, dh, dweight = out[:3]
    model = _Projection(h, weight, labels, bias, transpose_weight, compute)
    scales = matrix(dloss).reshape(-1)
    lse, weights = np.empty(len(loss), F), np.empty(len(loss), F)
    if not len(loss):
        dweight[...] = 0
    if bias is not None:
        out[3][...] = 0
    longest, _ = model.room()
    with borrowed(model.room()) as room, borrowed((longest, h.shape[1])) as weighted:
        for chunk in model.chunks():
            rows = model.logits(chunk, room)
            for_rows(
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
            states = np.multiply(model.h[chunk], weight_of, out=weighted[: len(rows)])
            model.add_weight_gradient(dweight, states, rows, chunk.start == 0)
            if bias is not None:
                product(weight_of.T, rows, out[3][None], add=True)


@compiled("linear_softmax_xent_grad", supports=_supports, scratch=_scratch_of_gradient)
def linear_softmax_xent_grad(
    dloss: np.ndarray,
    h: np.ndarray,
    weight: np.ndarray,
    labels: np.ndarray,
    lse: np.ndarray,
    bias: Optional[np.ndarray] = None,
    *,
    out: Out,
    transpose_weight: bool,
    compute: Optional[str] = None,
) -> None:
    """linear_softmax_xent_grad into dh [N, H], dweight, and dbias [V] if biased.

    Logits are computed again, and log(sum(e^logits)) with them, so that lse is not read.
    """
    loss = np.empty(len(h), F)
    linear_softmax_xent_train(
        dloss,
        h,
        weight,
        labels,
        bias,
        out=(loss, *out),
        transpose_weight=transpose_weight,
        compute=compute,
    )
