"""GEMM of operands rounded to bfloat16, with float32 sums, on all threads.

Letters: A [M, K], B [K, N]. Operands are rounded (if not stored in bfloat16) and packed for the
processor's instructions: the smaller one as a whole by all threads, then the other one in blocks,
each by the thread that multiplies it. K is split so that packed memory stays bounded.
`instructions()` chooses AMX or AVX512-BF16; without either, rounded operands go to BLAS. With
instructions every sum runs over K in order: bits depend neither on blocks nor on threads.
"""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels import instruction_set as isa
from cerebras_tf.kernels.blas import gemm as float32_gemm
from cerebras_tf.kernels.blas import scratch_bytes as float_scratch_bytes
from cerebras_tf.kernels.blas import serial_gemm
from cerebras_tf.kernels.compiled_bfloat16_microkernels import (
    NR,
    PITCH,
    SLAB,
    SLABS_PER_PASS,
    TILE_ROWS,
    amx_gemm,
    amx_kc,
    vector_gemm,
)
from cerebras_tf.kernels.compiled_intrinsics import bits_of, float_of
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER, jit
from cerebras_tf.kernels.compiled_operand_packing import (
    element_bytes,
    pack_columns,
    pack_rows,
    pack_transposed_columns,
    pack_transposed_rows,
    to_float,
)
from cerebras_tf.kernels.compiled_threads import (
    num_threads,
    parallel_chunks,
    parallel_for,
    parallel_tasks,
)
from cerebras_tf.kernels.scratch import aligned, borrow, round_up

# Multiplications below which one thread does all. On two cores of a Xeon with AMX, [512, 256] times
# [256, 1024] takes 0.47 ms on one thread and 0.76 on two; [2048, 512] times [512, 512] 2.0 ms on
# either.
_MIN_PARALLEL_WORK = {isa.NONE: 1 << 21, isa.AVX512_BF16: 1 << 21, isa.AMX: 1 << 28}
# Blocks per thread of a large product, so that a delayed thread hands work over.
_BLOCKS_PER_THREAD = 4
# Rows of a block are multiples of the micro-tile and of 16, which packing transposes.
ROW_UNITS = {isa.AVX512_BF16: 48, isa.AMX: TILE_ROWS}
# Bytes of the shared operand per block of K (at least SLABS_PER_PASS slabs), and of a thread's
# block of the other. On a Zen 5, [1024, 50257] times [50257, 768] takes 0.196 s of processor time;
# with four times these sizes 0.223, with all at once 0.209. Other products of training differ by
# less.
_SHARED_BYTES, _BLOCK_BYTES = 4 << 20, 1 << 20
TILE_BYTES = 4 * 32 * 32
_TRIAL_SHAPE, _TRIAL_S = (192, 768, 768), 0.1


@functools.cache
def instructions() -> isa.Choice:
    """The instructions that bfloat16 GEMM uses here; the first call may run a trial of 0.1 s.

    Raises:
        ConfigError: $CEREBRAS_TF_ISA has an unknown value, or one that this processor lacks.
    """
    return isa.choose(_trial, CACHE_FOLDER)


def gemm(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False, parts: Optional[int] = None
) -> None:
    """out = a b, or out += a b, of operands rounded to bfloat16; they may be transposed views.

    Args:
        a: [..., M, K] float32, or uint16, the bits of bfloat16.
        b: [..., K, N] alike; leading dimensions broadcast to those of out.
        out: [..., M, N] float32.
        add: whether to add into `out`; only for matrices.
        parts: threads that share a product of matrices; None: all, if it is large enough.
    """
    if out.ndim > 2:
        _batched(a, b, out)
        return
    kind, inner = instructions().kind, a.shape[1]
    if not out.size:
        return
    if not inner:
        if not add:
            out[...] = 0
        return
    parts = parts or threads_for(kind, out.size * inner)
    if kind == isa.NONE:
        _float32_gemm(a, b, out, add, parts)
    elif is_row_major(out):
        _packed_gemm(kind, a, b, out, add, parts)
    else:
        copied = np.array(out, order="C") if add else np.empty(out.shape, out.dtype)
        _packed_gemm(kind, a, b, copied, add, parts)
        out[...] = copied


def scratch_bytes(rows: int, inner: int, columns: int, parts: Optional[int] = None) -> int:
    """Bytes of scratch memory that `gemm` takes."""
    work = rows * inner * columns
    if not work:
        return 0
    kind = instructions().kind
    parts = parts or threads_for(kind, work)
    if kind == isa.NONE:
        own = round_up(4 * rows * inner) + round_up(4 * inner * columns)
        return own + float_scratch_bytes(rows, inner, columns, 4)
    blocks = _Blocks.of(kind, rows, inner, columns, parts)
    return blocks.shared_bytes + parts * (blocks.block_bytes + blocks.sums_bytes)


def threads_for(kind: str, work: int) -> int:
    """Threads of a product of so many multiplications."""
    return num_threads() if work >= _MIN_PARALLEL_WORK[kind] else 1


class _Blocks(NamedTuple):
    """How a product is divided.

    Attributes:
        by_rows: whether blocks are rows of A and B is shared; else blocks are columns of B.
        inner: K block.
        number: number of blocks.
        unit: rows or columns that blocks are multiples of.
        units: how many units there are.
        shared_bytes: of the packed shared operand.
        block_bytes: of a packed block of the other one.
        sums_bytes: of a block's partial sums.
    """

    by_rows: bool
    inner: int
    number: int
    unit: int
    units: int
    shared_bytes: int
    block_bytes: int
    sums_bytes: int

    @classmethod
    def of(cls, kind: str, rows: int, inner: int, columns: int, parts: int) -> _Blocks:
        by_rows = rows >= columns
        length, unit = (rows, ROW_UNITS[kind]) if by_rows else (columns, NR)
        inner = min(inner, longest_inner(min(rows, columns)))

        def size(of_rows: bool, many: int) -> int:
            return slab_bytes(kind, many, inner) if of_rows else panel_bytes(inner, many)

        units = -(-length // unit)
        number = count_blocks(units, size(by_rows, unit), parts)
        most = -(-units // number)
        pending = most if kind == isa.AMX and amx_kc(_round_up(inner, 32)) < inner else 1
        shared = size(not by_rows, min(rows, columns))
        block = size(by_rows, most * unit)
        return cls(by_rows, inner, number, unit, units, shared, block, TILE_BYTES * pending)


def longest_inner(shared: int) -> int:
    """K block of a product whose shared operand has so many rows or columns."""
    step = SLABS_PER_PASS * SLAB
    return max(step, _SHARED_BYTES // (2 * shared) // step * step)


def count_blocks(units: int, unit_bytes: int, parts: int) -> int:
    """Number of blocks of an operand of so many units, each of so many bytes when packed."""
    number = min(units, 1 if parts == 1 else _BLOCKS_PER_THREAD * parts)
    return max(number, -(-units // max(1, _BLOCK_BYTES // unit_bytes)))


def _trial() -> float:
    """Speed of AVX512-BF16 relative to float32 GEMM, on one thread."""
    rows, inner, columns = _TRIAL_SHAPE
    random = np.random.default_rng(0)
    a = random.standard_normal((rows, inner), np.float32)
    b = random.standard_normal((inner, columns), np.float32)
    out = np.empty((rows, columns), np.float32)

    def as_float32() -> None:
        serial_gemm(a, b, out)

    def in_bfloat16() -> None:
        _packed_gemm(isa.AVX512_BF16, a, b, out, False, 1)

    best = {as_float32: float("inf"), in_bfloat16: float("inf")}
    for kind in best:
        kind()  # compiles
    until = time.thread_time() + _TRIAL_S
    while time.thread_time() < until:
        for kind in best:
            start = time.thread_time()  # processor time: other programs may use the cores
            kind()
            best[kind] = min(best[kind], time.thread_time() - start)
    return best[as_float32] / best[in_bfloat16]


def _batched(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """One product per index of the leading dimensions, several indices per thread."""
    lead = out.shape[:-2]
    a = np.broadcast_to(a, lead + a.shape[-2:])
    b = np.broadcast_to(b, lead + b.shape[-2:])
    indices = list(np.ndindex(*lead))
    if len(indices) < num_threads():
        for index in indices:
            gemm(a[index], b[index], out[index])
        return
    chunks = min(len(indices), 2 * num_threads())

    def run(i: int) -> None:
        for index in indices[len(indices) * i // chunks : len(indices) * (i + 1) // chunks]:
            gemm(a[index], b[index], out[index], parts=1)

    parallel_tasks(run, chunks, out.size * a.shape[-1])


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def slab_bytes(kind: str, rows: int, inner: int) -> int:
    """Bytes of packed rows of A."""
    if kind == isa.AMX:
        return panel_bytes(inner, rows)
    return round_up(-(-inner // SLAB) * _round_up(rows, ROW_UNITS[kind]) * PITCH)


def panel_bytes(inner: int, columns: int) -> int:
    """Bytes of packed columns of B."""
    return round_up(2 * _round_up(inner, 32) * _round_up(columns, NR))


def is_row_major(x: np.ndarray) -> bool:
    """Whether rows are contiguous."""
    return x.strides[1] == x.itemsize or x.shape[1] == 1


def as_strided_rows(x: np.ndarray) -> np.ndarray:
    """The matrix, copied if neither rows nor columns are contiguous."""
    return x if is_row_major(x) or is_row_major(x.T) else np.ascontiguousarray(x)


class Operand(NamedTuple):
    """An operand as compiled code takes it.

    Attributes:
        example: a zero of its dtype.
        transposed: whether its columns are contiguous, not its rows.
        stored: address, bytes between rows, rows and columns of the row-major matrix: the operand,
            or its transpose.
    """

    example: Any
    transposed: bool
    stored: tuple[int, int, int, int]

    @classmethod
    def of(cls, x: np.ndarray) -> Operand:
        transposed = not is_row_major(x)
        stored = x.T if transposed else x
        rows, columns = stored.shape
        given = stored.ctypes.data, stored.strides[0], rows, columns
        return cls(x.dtype.type(0), transposed, given)


def _pack_a(kind: str, a: np.ndarray, workspace: np.ndarray, parts: int) -> tuple[int, int]:
    """Packs A [M, K]; returns (address, padded rows)."""
    height = _round_up(a.shape[0], ROW_UNITS[kind])
    layout = (height, _round_up(a.shape[1], 32) if kind == isa.AMX else 0)
    example, transposed, stored = Operand.of(a)
    count, pack = -(-a.shape[0] // 16), pack_transposed_rows if transposed else pack_rows
    parallel_chunks(pack, count, min(count, parts), example, stored, workspace.ctypes.data, layout)
    return workspace.ctypes.data, height


def pack_b(b: np.ndarray, workspace: np.ndarray, parts: int) -> tuple[int, int]:
    """Packs B [K, N]; returns (address, 0)."""
    pairs = _round_up(b.shape[0], 32) // 2
    example, transposed, stored = Operand.of(b)
    count, pack = -(-b.shape[1] // NR), pack_transposed_columns if transposed else pack_columns
    parallel_chunks(pack, count, min(count, parts), example, stored, workspace.ctypes.data, pairs)
    return workspace.ctypes.data, 0


def _packed_gemm(
    kind: str, a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, parts: int
) -> None:
    """`gemm` of matrices by instructions; rows of `out` are contiguous, no size is 0."""
    a, b = as_strided_rows(a), as_strided_rows(b)
    (rows, columns), inner = out.shape, a.shape[1]
    blocks = _Blocks.of(kind, rows, inner, columns, parts)
    with borrow((blocks.shared_bytes,), np.uint8) as shared:
        for k in range(0, inner, blocks.inner):
            part = slice(k, k + blocks.inner)
            more = add or k > 0
            _multiply_k_block(kind, blocks, a[:, part], b[part], out, more, parts, shared)


def _multiply_k_block(
    kind: str,
    blocks: _Blocks,
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    add: bool,
    parts: int,
    shared: np.ndarray,
) -> None:
    """Packs the shared operand, then multiplies it by blocks of the other one."""
    count = 1 if parts == 1 else 2 * parts
    packed = pack_b(b, shared, count) if blocks.by_rows else _pack_a(kind, a, shared, count)
    step = blocks.block_bytes + blocks.sums_bytes
    with borrow((parts * step,), np.uint8) as workspaces:
        parallel_chunks(
            _vector_blocks if kind == isa.AVX512_BF16 else _amx_blocks,
            blocks.number,
            1 if parts == 1 else blocks.number,
            (blocks.number, blocks.units, blocks.unit),
            blocks.by_rows,
            (*out.shape, a.shape[1], int(add)),
            tuple(Operand.of(a if blocks.by_rows else b)),
            packed,
            (out.ctypes.data, out.strides[0]),
            (workspaces.ctypes.data, step, blocks.block_bytes),
            TILE_CONFIG.ctypes.data,
            workspaces=parts,
        )


@jit()
def pack_block(by_rows, first, last, operand, target, unit, tiled):
    """Packs rows of A, or columns of B, [first, last); returns (address, padded rows).

    Args:
        by_rows: whether they are rows of A.
        target: address.
        unit: rows of A are padded to multiples of it.
        tiled: whether for AMX.
    """
    example, transposed, (at, step, rows, columns) = operand
    count = last - first
    if by_rows != transposed:
        stored, inner = (at + first * step, step, count, columns), columns
    else:
        stored, inner = (at + first * element_bytes(example), step, rows, count), rows
    even = -(-inner // 32) * 32
    if not by_rows:
        groups = -(-count // NR)
        if transposed:
            pack_transposed_columns(0, groups, example, stored, target, even // 2)
        else:
            pack_columns(0, groups, example, stored, target, even // 2)
        return target, 0
    height, groups = -(-count // unit) * unit, -(-count // 16)
    layout = (height, even if tiled else 0)
    if transposed:
        pack_transposed_rows(0, groups, example, stored, target, layout)
    else:
        pack_rows(0, groups, example, stored, target, layout)
    return target, height


@jit()
def _packed_block(index, split, by_rows, bounds, operand, packed, target, workspace, tiled):
    """Packs a block into `workspace`; other arguments as of `_amx_blocks`.

    Returns:
        Arguments of the block's product: bounds, A and B, each (address, padded rows), and
        (address, bytes between rows) of its part of C.
    """
    rows, columns, inner, add = bounds
    number, units, unit = split
    even = -(-inner // 32) * 32
    first = units * index // number * unit
    last = min(rows if by_rows else columns, units * (index + 1) // number * unit)
    block = pack_block(by_rows, first, last, operand, workspace, unit, tiled)
    if by_rows:
        place = target[0] + first * target[1], target[1]
        return (last - first, columns, even, add), block, packed, place
    return (rows, last - first, even, add), packed, block, (target[0] + 4 * first, target[1])


@jit()
def _amx_blocks(
    start, stop, thread, split, by_rows, bounds, operand, packed, target, workspaces, config
):
    """Blocks [start, stop) of a product by AMX.

    Args:
        split: (number of blocks, number of units, rows or columns of a unit).
        by_rows: whether blocks are rows and `operand` is A; else it is B.
        bounds: (M, N, K, whether to add).
        operand: the one that is packed block by block.
        packed: (address, padded rows) of the shared one.
        target: (address, bytes between rows) of C.
        workspaces: (address, bytes between threads, bytes of a packed block).
        config: address of the tile configuration.
    """
    workspace = workspaces[0] + thread * workspaces[1]
    sums = (workspace + workspaces[2], amx_kc(-(-bounds[2] // 32) * 32), 1 if by_rows else 0)
    for index in range(start, stop):
        sizes, a, b, place = _packed_block(
            index, split, by_rows, bounds, operand, packed, target, workspace, True
        )
        amx_gemm(sizes, a[0], b[0], place, sums, config)


@jit()
def _vector_blocks(
    start, stop, thread, split, by_rows, bounds, operand, packed, target, workspaces, config
):
    """As `_amx_blocks`, by AVX512-BF16; `config` is not read."""
    workspace = workspaces[0] + thread * workspaces[1]
    for index in range(start, stop):
        sizes, a, b, place = _packed_block(
            index, split, by_rows, bounds, operand, packed, target, workspace, False
        )
        vector_gemm(sizes, a, b[0], place, workspace + workspaces[2])


def _tile_configuration() -> np.ndarray:
    """AMX's tile configuration: palette 1, eight tiles of 16 rows of 64 bytes."""
    config = aligned(64)
    config[:] = 0
    config[0] = 1
    config[16:32].view(np.uint16)[:] = 64
    config[48:56] = 16
    return config


TILE_CONFIG = _tile_configuration()


@jit()
def round_operand(start, stop, x, out):
    """out = x [start, stop) rounded to bfloat16 as the instructions read it; may be x itself."""
    part, result = x[start:stop], out[start:stop]
    for i in range(part.size):
        number = to_float(part[i])
        bits = np.uint32(bits_of(number))
        nearest = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        quieted = np.uint32(bits | np.uint32(0x400000)) if number != number else nearest
        tiny = (bits & np.uint32(0x7F800000)) == 0
        kept = np.uint32(0x80000000) if tiny else np.uint32(0xFFFF0000)
        result[i] = float_of(np.int32(quieted & kept))


def round_into(x: np.ndarray, out: np.ndarray, parts: int) -> None:
    """out = x rounded to bfloat16 as the instructions read it; float32, or bits of bfloat16,
    C-contiguous."""
    source, target = x.reshape(-1), out.reshape(-1)
    if parts == 1:
        round_operand(0, x.size, source, target)
    else:
        parallel_for(round_operand, x.size, x.size, source, target)


def _float32_gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, parts: int) -> None:
    """`gemm` of matrices without instructions: BLAS multiplies rounded operands."""
    with borrow(_stored(a).shape) as left, borrow(_stored(b).shape) as right:
        for x, workspace in ((a, left), (b, right)):
            round_into(np.ascontiguousarray(_stored(x)), workspace, parts)
        a, b = (
            workspace.T if _is_transposed(x) else workspace
            for x, workspace in ((a, left), (b, right))
        )
        (serial_gemm if parts == 1 else float32_gemm)(a, b, out, add)


def _is_transposed(x: np.ndarray) -> bool:
    return not x.flags.c_contiguous and x.T.flags.c_contiguous


def _stored(x: np.ndarray) -> np.ndarray:
    return x.T if _is_transposed(x) else x
