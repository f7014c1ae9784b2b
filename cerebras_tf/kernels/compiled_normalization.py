"""Compiled layer norm, RMS norm and softmax, float32, one row at a time.

Letters: N rows (all leading axes), H width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cerebras_tf.kernels.compiled_half_precision import bfloat16_bits
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import all_float32, as_matrix
from cerebras_tf.kernels.compiled_math import exp, log
from cerebras_tf.kernels.compiled_reduction import add_rows, exp_into, row_max, sum_of_exp
from cerebras_tf.kernels.compiled_threads import chunks_or_one, parallel_chunks, parallel_for
from cerebras_tf.kernels.registry import Scratch, compiled
from cerebras_tf.kernels.scratch import borrow, round_up

F = np.float32
Out = tuple[np.ndarray, ...]
# Rows whose contributions to a parameter's gradient are summed before blocks are added up. Fixed,
# so that results do not depend on the number of cores.
_BLOCK_ROWS = 128


@jit(any_order=True)
def _layer_norm_rows(start, stop, x, gamma, beta, epsilon, y, mean, rstd):
    width = x.shape[1]
    inverse = F(1) / F(width)
    for i in range(start, stop):
        row = x[i]
        out = y[i]
        total = F(0)
        for j in range(width):
            total += row[j]
        center = total * inverse
        squares = F(0)
        for j in range(width):
            d = row[j] - center
            squares += d * d
        r = F(1) / np.sqrt(squares * inverse + epsilon)
        for j in range(width):
            out[j] = (row[j] - center) * r * gamma[j] + beta[j]
        mean[i] = center
        rstd[i] = r


@compiled("layer_norm", supports=all_float32)
def layer_norm(x, gamma, beta, *, out, epsilon):
    """layer_norm of [..., H] into y [..., H], mean [...], rstd [...]."""
    rows = as_matrix(x)
    y, mean, rstd = as_matrix(out[0]), out[1].reshape(-1), out[2].reshape(-1)
    parameters = as_matrix(gamma)[0], as_matrix(beta)[0]
    parallel_for(
        _layer_norm_rows, len(rows), 3 * x.size, rows, *parameters, F(epsilon), y, mean, rstd
    )


@jit(any_order=True)
def _layer_norm_grad_blocks(start, stop, dy, x, gamma, mean, rstd, dx, dgamma, dbeta):
    """Blocks [start, stop) of rows of dx; each block has its own sums, rows of dgamma and dbeta."""
    width = x.shape[1]
    inverse = F(1) / F(width)
    for block in range(start, stop):
        scale_sums, shift_sums = dgamma[block], dbeta[block]
        for j in range(width):
            scale_sums[j] = F(0)
            shift_sums[j] = F(0)
        for i in range(block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, x.shape[0])):
            row = x[i]
            cotangent = dy[i]
            out = dx[i]
            center = mean[i]
            r = rstd[i]
            total = F(0)
            along = F(0)
            for j in range(width):
                g = cotangent[j] * gamma[j]
                total += g
                along += g * (row[j] - center)
            total *= inverse
            along *= inverse * r * r
            for j in range(width):
                d = cotangent[j]
                normal = row[j] - center
                out[j] = (d * gamma[j] - total - normal * along) * r
                scale_sums[j] += d * (normal * r)
                shift_sums[j] += d


def _scratch_of_gradient(dy: Any, x: Any, *others: Any) -> Scratch:
    """Sums for gamma's and beta's gradients per block of rows."""
    width = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    return Scratch(round_up(8 * width * max(1, -(-rows // _BLOCK_ROWS))))


@compiled("layer_norm_grad", supports=all_float32, scratch=_scratch_of_gradient)
def layer_norm_grad(dy, x, gamma, mean, rstd, *, out):
    """layer_norm_grad into dx [..., H], dgamma [H], dbeta [H]."""
    rows, cotangents, dx = as_matrix(x), as_matrix(dy), as_matrix(out[0])
    scale = as_matrix(gamma)[0]
    means, rstds = as_matrix(mean).reshape(-1), as_matrix(rstd).reshape(-1)
    blocks = max(1, -(-len(rows) // _BLOCK_ROWS))
    with borrow((2, blocks, rows.shape[1])) as partial:
        chunks, given = (
            chunks_or_one(blocks, 4 * x.size),
            (cotangents, rows, scale, means, rstds, dx),
        )
        parallel_chunks(_layer_norm_grad_blocks, blocks, chunks, *given, *partial)
        add_rows(partial[0], out[1])
        add_rows(partial[1], out[2])


@jit(any_order=True)
def _rms_norm_rows(start, stop, x, gamma, epsilon, y, rounded, rstd):
    """Rows of y, or of `rounded`, in bits of bfloat16; the other one is empty."""
    width = x.shape[1]
    inverse = F(1) / F(width)
    for i in range(start, stop):
        row = x[i]
        squares = F(0)
        for j in range(width):
            squares += row[j] * row[j]
        r = F(1) / np.sqrt(squares * inverse + epsilon)
        if rounded.shape[0]:
            bits = rounded[i]
            for j in range(width):
                bits[j] = bfloat16_bits(row[j] * r * gamma[j])
        else:
            out = y[i]
            for j in range(width):
                out[j] = row[j] * r * gamma[j]
        rstd[i] = r


@compiled("rms_norm", supports=all_float32, writes_bfloat16=True)
def rms_norm(x, gamma, *, out, epsilon, dtype=None):
    """rms_norm of [..., H] into y [..., H], float32 or bits of bfloat16, and rstd [...]."""
    rows, y = as_matrix(x), as_matrix(out[0])
    none = np.empty((0, rows.shape[1]), np.uint16 if y.dtype == F else F)
    found = (y, none) if y.dtype == F else (none, y)
    given = rows, as_matrix(gamma)[0], F(epsilon), *found, out[1].reshape(-1)
    parallel_for(_rms_norm_rows, len(rows), 2 * x.size, *given)


@jit(any_order=True)
def _rms_norm_grad_blocks(start, stop, dy, x, gamma, rstd, other, dx, dgamma):
    """Blocks [start, stop) of rows of dx; each block has its own sums, a row of dgamma."""
    width = x.shape[1]
    inverse = F(1) / F(width)
    for block in range(start, stop):
        sums = dgamma[block]
        for j in range(width):
            sums[j] = F(0)
        for i in range(block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, x.shape[0])):
            row = x[i]
            cotangent = dy[i]
            out = dx[i]
            r = rstd[i]
            along = F(0)
            for j in range(width):
                along += cotangent[j] * gamma[j] * row[j]
            along *= inverse * r * r
            if other.shape[0]:
                added = other[i]
                for j in range(width):
                    d = cotangent[j]
                    out[j] = (d * gamma[j] - row[j] * along) * r + added[j]
                    sums[j] += d * (row[j] * r)
            else:
                for j in range(width):
                    d = cotangent[j]
                    out[j] = (d * gamma[j] - row[j] * along) * r
                    sums[j] += d * (row[j] * r)


def _scratch_of_rms_gradient(dy: Any, x: Any, *others: Any) -> Scratch:
    """Sums for gamma's gradient per block of rows."""
    blocks = max(1, -(-math.prod(x.shape[:-1]) // _BLOCK_ROWS))
    return Scratch(round_up(4 * x.shape[-1] * blocks))


@compiled("rms_norm_grad", supports=all_float32, scratch=_scratch_of_rms_gradient)
def rms_norm_grad(dy, x, gamma, rstd, *other, out):
    """rms_norm_grad into dx [..., H] and dgamma [H]."""
    rows, cotangents, dx = as_matrix(x), as_matrix(dy), as_matrix(out[0])
    added = as_matrix(other[0]) if other else np.empty((0, rows.shape[1]), F)
    blocks = max(1, -(-len(rows) // _BLOCK_ROWS))
    with borrow((blocks, rows.shape[1])) as partial:
        chunks = chunks_or_one(blocks, 4 * x.size)
        given = cotangents, rows, as_matrix(gamma)[0], as_matrix(rstd).reshape(-1), added, dx
        parallel_chunks(_rms_norm_grad_blocks, blocks, chunks, *given, partial)
        add_rows(partial, out[1])


@jit(any_order=True)
def _softmax_rows(start, stop, x, y):
    for i in range(start, stop):
        row = x[i]
        out = y[i]
        top = row_max(row)
        total = exp_into(row, top, out)
        scale = F(1) / total
        for j in range(row.size):
            out[j] *= scale


@jit(any_order=True)
def _softmax_grad_rows(start, stop, dy, y, dx):
    for i in range(start, stop):
        cotangent = dy[i]
        row = y[i]
        out = dx[i]
        along = F(0)
        for j in range(row.size):
            along += cotangent[j] * row[j]
        for j in range(row.size):
            out[j] = row[j] * (cotangent[j] - along)


@jit(any_order=True)
def _log_softmax_rows(start, stop, x, y):
    for i in range(start, stop):
        row = x[i]
        out = y[i]
        top = row_max(row)
        total = sum_of_exp(row, top)
        shift = log(total)
        for j in range(row.size):
            d = row[j] - top
            out[j] = d - shift


@jit(any_order=True)
def _log_softmax_grad_rows(start, stop, dy, y, dx):
    for i in range(start, stop):
        cotangent = dy[i]
        row = y[i]
        out = dx[i]
        total = F(0)
        for j in range(row.size):
            total += cotangent[j]
        for j in range(row.size):
            out[j] = cotangent[j] - exp(row[j]) * total


def _register(op: str, kernel: Any) -> None:
    """Registers a kernel of rows of its operands [..., H] and of its result."""

    def run(*operands: np.ndarray, out: Out) -> None:
        rows = [as_matrix(operand) for operand in operands]
        parallel_for(kernel, len(rows[0]), 2 * rows[0].size, *rows, as_matrix(out[0]))

    compiled(op, supports=all_float32)(run)


_register("softmax", _softmax_rows)
_register("softmax_grad", _softmax_grad_rows)
_register("log_softmax", _log_softmax_rows)
_register("log_softmax_grad", _log_softmax_grad_rows)
