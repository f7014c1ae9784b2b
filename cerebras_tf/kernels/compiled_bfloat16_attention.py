"""Attention of one head with products in bfloat16, by AMX or AVX512-BF16; softmax is float32.

Letters: S query length, T key length, D head width; Q queries of a block. The algorithm is that of
compiled_flash_attention.py. Keys and values are packed once per head, queries once per block, all
padded with zeros, so that products have no edges. Probabilities and their derivatives are rounded
while they are packed. Sums of the gradients of keys and values are stored transposed, [D, T]: then
probabilities are the right operand, whose packing needs no transposition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from cerebras_tf.kernels.compiled_bfloat16_microkernels import (
    NR,
    PITCH,
    SLAB,
    VECTOR_ROWS,
    add_tile_products,
    configure_tiles,
    copy_rows,
    load_tiles,
    release_tiles,
    store_tiles,
    vector_kernel,
    zero_tiles,
)
from cerebras_tf.kernels.compiled_flash_attention import score_block, softmax_block, softmax_grad
from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_operand_packing import (
    element_bytes,
    pack_columns,
    pack_rows,
    pack_transposed_columns,
    pack_transposed_rows,
    transpose_words,
)

F = np.float32
# Queries of a block.
QUERY_BLOCK = 96
# Floats after each row of scores: rows of a power of two would share few sets of L1.
_SCORES_PAD = 16


class _Sizes(NamedTuple):
    """Sizes of a head's workspace.

    Attributes:
        rows: Q, padded.
        keys: T, padded.
        depth: D, padded as columns or inner indices.
        height: D, padded as rows.
        panels: bytes of packed keys or values.
        copy: bytes of padded rows of an operand.
        block: bytes of packed queries of a block.
        transposed: bytes of their packed transpose.
        scores: bytes of a block of scores.
        weights: bytes of a packed block of probabilities.
        result: bytes of a block's result.
        sums: bytes of the transposed gradient of keys or values.
    """

    rows: int
    keys: int
    depth: int
    height: int
    panels: int
    copy: int
    block: int
    transposed: int
    scores: int
    weights: int
    result: int
    sums: int


@register_jitable
def _padded_size(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@register_jitable
def _bytes_of_a(tiled: bool, rows: int, inner: int) -> int:
    return 2 * rows * inner if tiled else -(-inner // SLAB) * rows * PITCH


@register_jitable
def _unit(tiled: bool) -> int:
    """Packed rows are padded to multiples of it."""
    return 32 if tiled else 48


@register_jitable
def _sizes(tiled: bool, width: int, queries: int, keys: int, depth: int) -> _Sizes:
    rows = _padded_size(max(1, min(width, queries)), 32 if tiled else 96)
    keys, deep = _padded_size(keys, 32), _padded_size(depth, 32)
    height = _padded_size(depth, _unit(tiled))
    return _Sizes(
        rows,
        keys,
        deep,
        height,
        2 * keys * deep,
        4 * max(keys, rows) * deep,
        _bytes_of_a(tiled, rows, deep),
        _bytes_of_a(tiled, height, rows),
        4 * rows * (keys + _SCORES_PAD),
        max(_bytes_of_a(tiled, rows, keys), 2 * rows * keys),
        4 * max(rows, NR) * deep,
        4 * height * keys,
    )


def workspace_bytes(tiled: bool, queries: int, keys: int, depth: int, gradient: bool) -> int:
    """Bytes of the workspace of `attention_head_bfloat16`, or of its gradient."""
    s = _sizes(tiled, QUERY_BLOCK, queries, keys, depth)
    shared = s.copy + s.block + s.scores + s.weights + s.result
    if not gradient:
        return shared + 2 * s.panels
    return shared + 3 * s.panels + s.block + 2 * s.transposed + s.scores + 2 * s.sums


@jit()
def _multiply(config, sizes, a, b, c, add):
    """C = A B, or C += A B.

    Args:
        config: address of AMX's tile configuration; None: by AVX512-BF16.
        sizes: (M, N, K), padded.
        a: address of packed A.
        b: (address, bytes between panels).
        c: (address, bytes between rows), float32.
    """
    rows, columns, inner = sizes
    b_at, b_step = b
    c_at, c_step = c
    if config is None:
        for j in range(0, columns, NR):
            for k in range(0, inner, SLAB):
                pairs = (min(inner, k + SLAB) - k) // 2
                panel = b_at + j // NR * b_step + 2 * NR * k
                more = 1 if add or k else 0
                for i in range(0, rows, VECTOR_ROWS):
                    slab = a + (k // SLAB * rows + i) * PITCH
                    vector_kernel(slab, panel, c_at + i * c_step + 4 * j, c_step, pairs, more)
    else:
        configure_tiles(config)
        for j in range(0, columns, NR):
            for i in range(0, rows, 32):
                at = c_at + i * c_step + 4 * j
                if add:
                    load_tiles(at, c_step)
                else:
                    zero_tiles()
                add_tile_products(a + 2 * i * inner, b_at + j // NR * b_step, inner)
                store_tiles(at, c_step)
        release_tiles()


@jit()
def _padded(x, rows, columns, memory):
    """(address, bytes between rows) of x, padded with zeros to [rows, columns]; in `memory` unless
    x has these sizes."""
    if x.shape[0] == rows and x.shape[1] == columns:
        return np.int64(x.ctypes.data), np.int64(x.strides[0])
    size = element_bytes(x.dtype.type(0))
    copy = memory.view(x.dtype)[: rows * columns]
    copy[:] = x.dtype.type(0)
    at, step = np.int64(copy.ctypes.data), columns * size
    copy_rows(at, step, np.int64(x.ctypes.data), x.strides[0], x.shape[0], x.shape[1] * size)
    return at, step


@jit()
def _pack_values(x, s, copy, target):
    """Packs x [T, D] as B."""
    at, step = _padded(x, s.keys, s.depth, copy)
    given = at, step, s.keys, s.depth
    pack_columns(0, s.depth // NR, x.dtype.type(0), given, target, s.keys // 2)


@jit()
def _pack_transposed_keys(x, s, copy, target):
    """Packs the transpose of x [T, D] as B."""
    at, step = _padded(x, s.keys, s.depth, copy)
    given = at, step, s.keys, s.depth
    pack_transposed_columns(0, s.keys // NR, x.dtype.type(0), given, target, s.depth // 2)


@jit()
def _pack_queries(tiled, x, s, copy, target, transposed):
    """Packs rows of a block, x [Q, D], as A, and their transpose, unless its address is 0."""
    rows, even = _padded_size(x.shape[0], _unit(tiled)), _padded_size(x.shape[0], 32)
    most = max(rows, even)
    at, step = _padded(x, most, s.depth, copy)
    zero = x.dtype.type(0)
    layout = rows, s.depth if tiled else 0
    pack_rows(0, rows // 16, zero, (at, step, most, s.depth), target, layout)
    if transposed:
        layout = s.height, even if tiled else 0
        given = at, step, even, s.depth
        pack_transposed_rows(0, s.height // 16, zero, given, transposed, layout)


@jit()
def _pack_weights(tiled, scores, rows, keys, target):
    """Packs a block of scores [Q, T and more] as A."""
    given = np.int64(scores.ctypes.data), scores.strides[0], rows, keys
    pack_rows(0, rows // 16, F(0), given, target, (rows, keys if tiled else 0))


@jit()
def _pack_weights_as_right(scores, keys, target):
    """Packs a block of scores [Q, T and more] as B; its rows after the last query become 0.

    Returns:
        Bytes between panels.
    """
    even = _padded_size(scores.shape[0], 32)
    given = np.int64(scores.ctypes.data), scores.strides[0], even, keys
    pack_columns(0, keys // NR, F(0), given, target, even // 2)
    return 2 * NR * even


@inlined
def _rows_of(workspace, at, rows, columns):
    """A matrix at an offset of bytes."""
    return workspace[at // 4 : at // 4 + rows * columns].reshape(rows, columns)


@jit()
def attention_head_bfloat16(config, width, operands, workspace, rows, dropout):
    """Attention of a head.

    Args:
        config: as for `_multiply`.
        width: queries of a block.
        operands: q [S, D], k and v [T, D], and the result [S, D], with contiguous rows.
        workspace: float32, of `workspace_bytes`.
        rows: SoftmaxRows.
        dropout: HeadDropout; None for none.
    """
    q, k, v, out = operands
    (queries, depth), keys = q.shape, k.shape[0]
    tiled = config is not None
    s = _sizes(tiled, width, queries, keys, depth)
    base = np.int64(workspace.ctypes.data)
    value_at = s.panels
    copy_at = value_at + s.panels
    block_at = copy_at + s.copy
    scores_at = block_at + s.block
    weights_at = scores_at + s.scores
    result_at = weights_at + s.weights
    copy = workspace[copy_at // 4 : block_at // 4]
    if queries > 0:
        _pack_transposed_keys(k, s, copy, base)
        _pack_values(v, s, copy, base + value_at)
    for start in range(0, queries, width):
        stop = min(queries, start + width)
        seen = max(0, min(keys, stop + keys - queries)) if rows.causal else keys
        columns, height = _padded_size(seen, 32), _padded_size(stop - start, _unit(tiled))
        pitch = columns + _SCORES_PAD
        _pack_queries(tiled, q[start:stop], s, copy, base + block_at, 0)
        sizes, by_row = (height, columns, s.depth), (base + scores_at, 4 * pitch)
        _multiply(config, sizes, base + block_at, (base, 2 * NR * s.depth), by_row, False)
        scores = _rows_of(workspace, scores_at, stop - start, pitch)
        softmax_block(scores, dropout, score_block(rows, start, queries, keys, seen))
        _pack_weights(tiled, scores, height, columns, base + weights_at)
        sizes, panels = (height, s.depth, columns), (base + value_at, 2 * NR * s.keys)
        result = base + result_at, 4 * s.depth
        _multiply(config, sizes, base + weights_at, panels, result, False)
        to = np.int64(out.ctypes.data) + start * out.strides[0]
        copy_rows(to, out.strides[0], base + result_at, 4 * s.depth, stop - start, 4 * depth)


@jit()
def _store_transposed(sums, s, out, memory):
    """out [T, D] = the transpose of sums [D, T] at an address; `memory`: address of 16 rows."""
    for t in range(0, out.shape[0], 16):
        for d in range(0, s.depth, 16):
            source = sums + 4 * (d * s.keys + t)
            transpose_words(F(0), source, 4 * s.keys, memory + 4 * d, 4 * s.depth)
        to, count = np.int64(out.ctypes.data) + t * out.strides[0], min(16, out.shape[0] - t)
        copy_rows(to, out.strides[0], memory, 4 * s.depth, count, 4 * out.shape[1])


class _Places(NamedTuple):
    """Offsets in bytes in the workspace of derivatives; keys and values are at its beginning.

    Attributes:
        keys: packed keys that are not transposed.
        copy: padded rows of an operand.
        queries, dout: packed rows of a block.
        queries_transposed, dout_transposed: their transposes.
        scores, dscores: a block of scores, and of their cotangents.
        weights: either, packed.
        result: gradient of a block's queries.
        dk, dv: sums of gradients.
    """

    keys: int
    copy: int
    queries: int
    dout: int
    queries_transposed: int
    dout_transposed: int
    scores: int
    dscores: int
    weights: int
    result: int
    dk: int
    dv: int


@inlined
def _places(s):
    keys = 2 * s.panels
    copy = keys + s.panels
    queries = copy + s.copy
    dout = queries + s.block
    queries_transposed = dout + s.block
    dout_transposed = queries_transposed + s.transposed
    scores = dout_transposed + s.transposed
    dscores = scores + s.scores
    weights = dscores + s.scores
    result = weights + s.weights
    dk = result + s.result
    turned = queries_transposed, dout_transposed
    return _Places(
        keys, copy, queries, dout, *turned, scores, dscores, weights, result, dk, dk + s.sums
    )


@jit()
def _score_gradients(config, operands, workspace, s, seen, dropout, block):
    """Probabilities of a block and derivatives of its scores, both padded.

    Args:
        operands: q and dout of the block.
        seen: keys that its queries see.
    """
    q, dout = operands
    tiled, count, at = config is not None, q.shape[0], _places(s)
    base = np.int64(workspace.ctypes.data)
    columns, height = _padded_size(seen, 32), _padded_size(count, _unit(tiled))
    pitch, even = columns + _SCORES_PAD, _padded_size(count, 32)
    copy = workspace[at.copy // 4 : at.queries // 4]
    _pack_queries(tiled, q, s, copy, base + at.queries, base + at.queries_transposed)
    _pack_queries(tiled, dout, s, copy, base + at.dout, base + at.dout_transposed)
    sizes, step, by_row = (height, columns, s.depth), 2 * NR * s.depth, 4 * pitch
    _multiply(config, sizes, base + at.queries, (base, step), (base + at.scores, by_row), False)
    values = base + s.panels, step
    _multiply(config, sizes, base + at.dout, values, (base + at.dscores, by_row), False)
    scores = _rows_of(workspace, at.scores, even, pitch)
    dscores = _rows_of(workspace, at.dscores, even, pitch)
    scores[count:] = F(0)
    dscores[count:] = F(0)
    softmax_grad(scores[:count], dscores[:count], dropout, block)
    return scores, dscores


@jit()
def attention_head_grad_bfloat16(config, width, operands, workspace, rows, dropout, adds):
    """Derivatives of a head's attention; dk and dv become 0 if there is no query.

    Args:
        operands: the result's cotangent, q, k, v, and the results dq, dk, dv.
        config, width, workspace, rows, dropout: as for `attention_head_bfloat16`; rows.lse of the
            forward pass.
        adds: whether the workspace holds packed keys and values and sums of derivatives of the head
            before, with the same keys, to which those of this head are added.
    """
    dout, q, k, v, dq, dk, dv = operands
    (queries, depth), keys = q.shape, k.shape[0]
    if queries == 0:
        dk[:] = F(0)
        dv[:] = F(0)
        return
    tiled = config is not None
    s = _sizes(tiled, width, queries, keys, depth)
    at, base = _places(s), np.int64(workspace.ctypes.data)
    copy = workspace[at.copy // 4 : at.queries // 4]
    if not adds:
        _pack_transposed_keys(k, s, copy, base)
        _pack_transposed_keys(v, s, copy, base + s.panels)
        _pack_values(k, s, copy, base + at.keys)
    weights = base + at.weights
    start = (queries - 1) // width * width  # whose last query sees all keys
    while start >= 0:
        stop = min(queries, start + width)
        seen = max(0, min(keys, stop + keys - queries)) if rows.causal else keys
        columns, height = _padded_size(seen, 32), _padded_size(stop - start, _unit(tiled))
        own = q[start:stop], dout[start:stop]
        block = score_block(rows, start, queries, keys, seen)
        scores, dscores = _score_gradients(config, own, workspace, s, seen, dropout, block)
        more, sizes = adds or stop < queries, (s.height, columns, scores.shape[0])
        step = _pack_weights_as_right(scores, columns, weights)
        sums = base + at.dv, 4 * s.keys
        _multiply(config, sizes, base + at.dout_transposed, (weights, step), sums, more)
        step = _pack_weights_as_right(dscores, columns, weights)
        sums = base + at.dk, 4 * s.keys
        _multiply(config, sizes, base + at.queries_transposed, (weights, step), sums, more)
        _pack_weights(tiled, dscores, height, columns, weights)
        sizes, panels = (height, s.depth, columns), (base + at.keys, 2 * NR * s.keys)
        _multiply(config, sizes, weights, panels, (base + at.result, 4 * s.depth), False)
        to = np.int64(dq.ctypes.data) + start * dq.strides[0]
        copy_rows(to, dq.strides[0], base + at.result, 4 * s.depth, stop - start, 4 * depth)
        start -= width
    _store_transposed(base + at.dv, s, dv, base + at.result)
    _store_transposed(base + at.dk, s, dk, base + at.result)
