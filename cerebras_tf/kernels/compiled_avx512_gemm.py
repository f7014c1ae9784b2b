"""GEMM in float32 by AVX-512: C [M, N] = A [M, K] B [K, N].

The loops are those of Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication,
2008) with the names of BLIS: a block of B of KC rows is packed into panels of NR columns that stay
in L2, and a micro-kernel keeps a tile of MR x NR sums in registers. Unlike BLAS, A is read in
place, because packing it dominates if K is short and activations come from memory. A is packed into
panels of MR rows only if its columns are contiguous, and copied only if its rows would share one
set of L1. On a Xeon with AMX, where fused multiply-adds alone reach 200 GFLOP/s a core and OpenBLAS
145 to 150, the inner loop reaches 180.

Every sum runs over blocks of K in order: results depend neither on tiles nor on threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from cerebras_tf.kernels.compiled_intrinsics import emit_prefetch, emits, prefetch
from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_operand_packing import load_element, transposed
from cerebras_tf.kernels.scratch import round_up

F = np.float32

# The micro-tile: 24 of 32 registers hold sums, the others two vectors of B and an element of A.
MR, NR = 12, 32
# A tile of A, MR x KC floats or 18 KB, stays in L1 while the panels of B pass.
KC = 384
# The block of B stays in L2 while rows of A pass. On the Xeon, with 2 MB of L2, speed differs by 1
# % between half and one and a half of it.
_B_BLOCK_BYTES = 768 << 10
# The loop over K is unrolled so many times: 3 % faster than not at all.
_UNROLL = 4
# Panels packed at once from row-major B: one alone would read only two cache lines of each row.
_PANELS_AT_ONCE = 8
_LANES = 16  # floats of a vector
_LINE = 64
# Rows a multiple of this apart share one set of L1 (64 sets on Intel's and AMD's processors), which
# holds 8 or 12 lines: fewer than the MR that a tile reads.
_SET_BYTES = 4096
_TILE_BYTES = 4 * MR * NR
# Workspace of a thread: a block of B, a tile of A, a tile of sums.
WORKSPACE_BYTES = _B_BLOCK_BYTES + 4 * MR * KC + _TILE_BYTES + 4 * _LINE
WORKSPACE_STRIDE = round_up(WORKSPACE_BYTES)

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOAT = ir.FloatType()
_VECTOR, _WORDS = ir.VectorType(_FLOAT, 16), ir.VectorType(_I32, 16)
_HALVES = (0, 1)  # the vectors of a row of a tile


def _pointer(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


_prefetch_l2 = prefetch(0, 2)


def _broadcast(builder, address):
    """The float at an address, in every lane of a vector."""
    number = builder.load(_pointer(builder, address, _FLOAT), align=4)
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, _I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * 16))


def _rank_1_update(builder: Any, sums: list[Any], rows: list[Any], row_of_b: Any) -> list[Any]:
    """Adds the products of one k, of A at the addresses `rows` and B at `row_of_b`, to the sums."""
    signature = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    multiply_add = cgutils.get_or_insert_function(builder.module, signature, "llvm.fma.v16f32")
    vectors = []
    for half in _HALVES:
        at = builder.add(row_of_b, _I64(_LINE * half))
        vectors.append(builder.load(_pointer(builder, at, _VECTOR), align=_LINE))
    updated = []
    for i, row in enumerate(rows):
        number = _broadcast(builder, row)
        for half in _HALVES:
            updated.append(builder.call(multiply_add, [number, vectors[half], sums[2 * i + half]]))
    return updated


def _k_loop(
    builder: Any, sums: list[Any], inner: Any, step: int, rows_at: Any, b: Any
) -> list[Any]:
    """Sums over all k: steps of `step`, then the remainder one by one.

    Args:
        rows_at: function k -> addresses of A's elements.
        b: address of the panel.
    """
    before = builder.block
    unrolled, test, remainder, test_remainder, end = (
        builder.append_basic_block(name)
        for name in ("unrolled", "test", "remainder", "test_remainder", "end")
    )
    whole = builder.sub(inner, builder.urem(inner, _I64(step)))
    builder.branch(test)
    positions, phis = [], []
    for test_block, previous in ((test, before), (test_remainder, test)):
        builder.position_at_end(test_block)
        positions.append(builder.phi(_I64))
        phis.append([builder.phi(_VECTOR) for _ in sums])
        start, values = (_I64(0), sums) if test_block is test else (positions[0], phis[0])
        positions[-1].add_incoming(start, previous)
        for total, value in zip(phis[-1], values):
            total.add_incoming(value, previous)
    for test_block, body, until, after, steps_at_once, index in (
        (test, unrolled, whole, test_remainder, step, 0),
        (test_remainder, remainder, inner, end, 1, 1),
    ):
        builder.position_at_end(test_block)
        builder.cbranch(builder.icmp_signed("<", positions[index], until), body, after)
        builder.position_at_end(body)
        updated = phis[index]
        for i in range(steps_at_once):
            k = builder.add(positions[index], _I64(i))
            row_of_b = builder.add(b, builder.mul(k, _I64(4 * NR)))
            updated = _rank_1_update(builder, updated, rows_at(k), row_of_b)
        positions[index].add_incoming(builder.add(positions[index], _I64(steps_at_once)), body)
        for total, value in zip(phis[index], updated):
            total.add_incoming(value, body)
        builder.branch(test_block)
    builder.position_at_end(end)
    return phis[1]


def _micro_kernel(in_place: bool) -> Any:
    """An intrinsic: a tile C [MR, NR] = A B, or += A B if `add`; addresses, and bytes between rows.

    Args:
        in_place: whether rows of A are contiguous, `a_step` bytes apart; else A is a panel [K, MR].
    """

    @emits(types.void, *[types.int64] * 7)
    def kernel(builder, a, a_step, b, c, c_step, inner, add):
        places = []
        for i in range(MR):
            row = builder.add(c, builder.mul(c_step, _I64(i)))
            places += [builder.add(row, _I64(_LINE * half)) for half in _HALVES]
        for index in places:
            emit_prefetch(builder, _pointer(builder, index, _I8), 1, 3)
        # Three rows per base address: x86 addressing adds one or two steps by itself.
        firsts = [builder.add(a, builder.mul(a_step, _I64(i))) for i in range(0, MR, 3)]
        steps = [_I64(0), a_step, builder.mul(a_step, _I64(2))]

        def rows_at(k: Any) -> list[Any]:
            if in_place:
                column = builder.mul(k, _I64(4))
                return [
                    builder.add(builder.add(firsts[i // 3], column), steps[i % 3])
                    for i in range(MR)
                ]
            column = builder.add(a, builder.mul(k, _I64(4 * MR)))
            return [builder.add(column, _I64(4 * i)) for i in range(MR)]

        zeros = [ir.Constant(_VECTOR, None)] * len(places)
        sums = _k_loop(builder, zeros, inner, _UNROLL, rows_at, b)
        targets = [_pointer(builder, index, _VECTOR) for index in places]
        with builder.if_else(builder.icmp_signed("!=", add, _I64(0))) as (more, once):
            with more:
                for target, total in zip(targets, sums):
                    builder.store(builder.fadd(builder.load(target, align=4), total), target, 4)
            with once:
                for target, total in zip(targets, sums):
                    builder.store(total, target, 4)

    return kernel


_kernel_of_rows, _kernel_of_panel = _micro_kernel(True), _micro_kernel(False)


@emits(types.void, types.int64, types.float32)
def _store(builder, address, number):
    builder.store(number, _pointer(builder, address, _FLOAT), 4)


@emits(types.void, types.int64, types.int64)
def _copy_vector(builder, source, target):
    """Copies 16 floats."""
    source, target = (_pointer(builder, address, _VECTOR) for address in (source, target))
    builder.store(builder.load(source, align=4), target, 4)


@emits(types.void, *[types.int64] * 4)
def _transpose_block(builder, source, step, target, to_step):
    """Writes the transpose of 16 x 16 floats; addresses, and bytes between rows."""
    rows = []
    for i in range(_LANES):
        at = builder.add(source, builder.mul(step, _I64(i)))
        rows.append(builder.load(_pointer(builder, at, _WORDS), align=4))
    for i, row in enumerate(transposed(builder, rows)):
        at = builder.add(target, builder.mul(to_step, _I64(i)))
        builder.store(row, _pointer(builder, at, _WORDS), 4)


@inlined
def _even_block(size, most, unit):
    """Block size that splits `size` evenly into the fewest blocks of at most `most`, a multiple of
    `unit`."""
    parts = max(1, -(-size // most))
    return -(-size // (parts * unit)) * unit


@jit()
def _pack_b(sizes, b, workspace):
    """Packs a block of B into panels [N / NR, K, NR], padded with zeros.

    Args:
        sizes: (K, N) of the block.
        b: (address, bytes between rows, bytes between columns).
        workspace: address of the panels.
    """
    inner, columns = sizes
    at, inner_step, column_step = b
    whole_columns, whole_inner = columns // _LANES * _LANES, 0
    if column_step == 4:
        whole_inner = inner
        for first in range(0, whole_columns, _PANELS_AT_ONCE * NR):
            last = min(whole_columns, first + _PANELS_AT_ONCE * NR)
            for k in range(inner):
                for j in range(first, last, _LANES):
                    target = workspace + 4 * ((j // NR * inner + k) * NR + j % NR)
                    _copy_vector(at + k * inner_step + 4 * j, target)
    else:
        whole_inner = inner // _LANES * _LANES
        for j in range(0, whole_columns, _LANES):
            for k in range(0, whole_inner, _LANES):
                target = workspace + 4 * ((j // NR * inner + k) * NR + j % NR)
                _transpose_block(at + 4 * k + j * column_step, column_step, target, 4 * NR)
    for j in range(-(-columns // NR) * NR):
        for k in range(whole_inner if j < whole_columns else 0, inner):
            number = (
                load_element(F(0), at + k * inner_step + j * column_step) if j < columns else F(0)
            )
            _store(workspace + 4 * ((j // NR * inner + k) * NR + j % NR), number)


@jit()
def _pack_a(rows, may_read_16, inner, a, workspace):
    """Packs rows of A into a panel [K, MR], padded with zeros.

    Args:
        rows: at most MR.
        may_read_16: whether 16 rows exist.
        a: (address, bytes between rows, bytes between columns).
        workspace: address of the panel, with space for four more floats.
    """
    at, row_step, inner_step = a
    if may_read_16 and row_step == 4:
        for k in range(inner):
            _copy_vector(at + k * inner_step, workspace + 4 * MR * k)
        return
    for k in range(inner):
        for i in range(MR):
            number = load_element(F(0), at + i * row_step + k * inner_step) if i < rows else F(0)
            _store(workspace + 4 * (MR * k + i), number)


@jit()
def _copy_a(inner, a, row_step, workspace):
    """Copies MR rows of A so that they are contiguous."""
    whole = inner // _LANES * _LANES
    for i in range(MR):
        source, target = a + i * row_step, workspace + 4 * inner * i
        for k in range(0, whole, _LANES):
            _copy_vector(source + 4 * k, target + 4 * k)
        for k in range(whole, inner):
            _store(target + 4 * k, load_element(F(0), source + 4 * k))


@jit()
def _write_edge(rows, columns, c, c_step, sums, add):
    """C = or += the part of a tile of sums that lies within C."""
    for i in range(rows):
        for j in range(columns):
            at, total = (c + i * c_step + 4 * j, load_element(F(0), sums + 4 * (NR * i + j)))
            _store(at, load_element(F(0), at) + total if add else total)


@jit()
def _multiply_block(bounds, a, block, c, workspace):
    """C = A B, or +=, for a packed block of B.

    Args:
        bounds: (M, N, K, whether to add).
        a: (address, bytes between rows, bytes between columns).
        block: address of the panels.
        c: (address, bytes between rows).
        workspace: address of a tile of A and a tile of sums.
    """
    rows, columns, inner, add = bounds
    a_at, row_step, inner_step = a
    c_at, c_step = c
    sums, panels = workspace + 4 * MR * KC + _LINE, -(-columns // NR)
    for i in range(0, rows, MR):
        m_size, a_rows = min(MR, rows - i), a_at + i * row_step
        in_place, first, step = inner_step == 4 and m_size == MR, a_rows, row_step
        if not in_place:
            _pack_a(m_size, i + 16 <= rows, inner, (a_rows, row_step, inner_step), workspace)
        elif row_step % _SET_BYTES == 0 and panels > 1:
            _copy_a(inner, a_rows, row_step, workspace)
            first, step = workspace, 4 * inner
        for p in range(panels):
            if in_place:  # prefetch the next rows of A, a share of them per panel
                for below in range(MR * p // panels, MR * (p + 1) // panels):
                    if i + MR + below < rows:
                        line = a_rows + (MR + below) * row_step
                        for k in range(0, 4 * inner, _LINE):
                            _prefetch_l2(line + k)
            n_size = min(NR, columns - NR * p)
            panel = block + 4 * NR * inner * p
            at = c_at + i * c_step + 4 * NR * p
            whole = m_size == MR and n_size == NR
            to, to_step, more = (at, c_step, add) if whole else (sums, 4 * NR, 0)
            if in_place:
                _kernel_of_rows(first, step, panel, to, to_step, inner, more)
            else:
                _kernel_of_panel(workspace, 0, panel, to, to_step, inner, more)
            if not whole:
                _write_edge(m_size, n_size, at, c_step, sums, add)


@jit()
def gemm_block(bounds, a, b, c, workspace):
    """C [M, N] = A [M, K] B [K, N], or C += A B, on this thread.

    Args:
        bounds: (M, N, K, whether to add); no size is 0.
        a, b: (address, bytes between rows, bytes between columns); one of the steps is 4.
        c: (address, bytes between rows); rows are contiguous.
        workspace: address of WORKSPACE_BYTES, aligned to 64 bytes.
    """
    rows, columns, inner, add = bounds
    a_at, a_row, a_inner = a
    b_at, b_inner, b_column = b
    c_at, c_step = c
    kc = _even_block(inner, KC, _LANES)
    width = _even_block(columns, _B_BLOCK_BYTES // (4 * NR * kc) * NR, NR)
    for j in range(0, columns, width):
        n_size = min(width, columns - j)
        for k in range(0, inner, kc):
            k_size = min(kc, inner - k)
            index = (b_at + j * b_column + k * b_inner, b_inner, b_column)
            _pack_b((k_size, n_size), index, workspace)
            _multiply_block(
                (rows, n_size, k_size, 1 if add or k else 0),
                (a_at + k * a_inner, a_row, a_inner),
                workspace,
                (c_at + 4 * j, c_step),
                workspace + _B_BLOCK_BYTES + _LINE,
            )


@jit()
def gemm_range(start, stop, thread, by_rows, bounds, a, b, c, workspaces):
    """`gemm_block` for rows, or columns, [start, stop) of C.

    Args:
        bounds, a, b, c: of the whole product; see `gemm_block`.
        workspaces: address of a workspace per thread, WORKSPACE_STRIDE apart.
    """
    rows, columns, inner, add = bounds
    workspace, count = workspaces + thread * WORKSPACE_STRIDE, stop - start
    if by_rows:
        a, c = (a[0] + start * a[1], a[1], a[2]), (c[0] + start * c[1], c[1])
        gemm_block((count, columns, inner, add), a, b, c, workspace)
    else:
        b, c = (b[0] + start * b[2], b[1], b[2]), (c[0] + 4 * start, c[1])
        gemm_block((rows, count, inner, add), a, b, c, workspace)


@jit()
def gemm_k_range(start, stop, thread, parts, bounds, a, b, c, sums, workspaces):
    """Partial sums over K: part 0 into C, the others into `sums`.

    Args:
        bounds, a, b, c: of the whole product; see `gemm_block`.
        sums: address of float32 [parts - 1, M, N].
        workspaces: as for `gemm_range`.
    """
    rows, columns, inner, add = bounds
    for part in range(start, stop):
        first, last = inner * part // parts, inner * (part + 1) // parts
        target = c if part == 0 else (sums + 4 * (part - 1) * rows * columns, 4 * columns)
        gemm_block(
            (rows, columns, last - first, add if part == 0 else 0),
            (a[0] + first * a[2], a[1], a[2]),
            (b[0] + first * b[1], b[1], b[2]),
            target,
            workspaces + thread * WORKSPACE_STRIDE,
        )
