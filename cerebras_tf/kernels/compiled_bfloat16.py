"""Products of matrices whose elements are rounded to bfloat16, sums in float32.

Letters: M, K, N sizes of a product. Operands are rounded, where they are not at rest so, and laid
out for the processor's instructions in scratch memory: the smaller one whole, by all threads, then
the other in blocks, each by the thread that multiplies it. Long sums run part by part, so what is
laid out at once has a bound. Which instructions, `instructions()` says; without any, rounded
operands go to BLAS. Every element's sum runs over K in order: by instructions, bits depend neither
on blocks nor on the number of threads.
"""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels import instruction_set as isa
from cerebras_tf.kernels.blas import gemm
from cerebras_tf.kernels.blas import product as float_product
from cerebras_tf.kernels.blas import scratch_bytes as float_scratch_bytes
from cerebras_tf.kernels.compiled_bfloat16_microkernels import (
    COLUMNS,
    PITCH,
    SLAB,
    SLABS,
    TILE_ROWS,
    chunk_size,
    tile_product,
    vector_product,
)
from cerebras_tf.kernels.compiled_intrinsics import bits_of, float_of
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER, jit
from cerebras_tf.kernels.compiled_operand_packing import (
    as_float,
    bytes_of,
    pack_columns,
    pack_rows,
    pack_turned_columns,
    pack_turned_rows,
)
from cerebras_tf.kernels.compiled_threads import for_chunks, for_rows, spread, threads
from cerebras_tf.kernels.scratch import aligned, borrowed, rounded

# Multiplications below which one thread does all. On two cores of a Xeon with AMX, 512 x 256 times
# 256 x 1024 numbers take 0.47 ms on one thread and 0.76 on two, 2048 x 512 times 512 x 512 2.0 ms
# on either.
_LEAST_WORK = {isa.NONE: 1 << 21, isa.VECTOR: 1 << 21, isa.TILES: 1 << 28}
# Blocks a thread of a large product: more, so that a thread that is held up hands work over.
_PARTS = 4
# Rows of a block come in whole blocks of sums, and in groups of 16, which packing turns.
_HEIGHTS = {isa.VECTOR: 48, isa.TILES: TILE_ROWS}
# Bytes of the operand that all threads read, at least SLABS of it, and of a thread's block of the
# other. On a Zen 5, 1024 x 50257 numbers times 50257 x 768 take 0.196 s of processor time, with
# four times these 0.223, with all at once 0.209; other products of training differ by less.
_SHARED_BYTES, _BLOCK_BYTES = 4 << 20, 1 << 20
_ROOM = 4 * 32 * 32  # bytes of the sums of a block
_TRIAL_SHAPE, _TRIAL_S = (192, 768, 768), 0.1


@functools.cache
def instructions() -> isa.Choice:
    """What multiplies bfloat16 numbers on this machine; see instructions.choose."""
    return isa.choose(_trial, CACHE_FOLDER)


def product(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False, parts: Optional[int] = None
) -> None:
    """out = a b, or out += a b, of operands rounded to bfloat16; they may be transposed views.

    Args:
        a: [..., M, K] float32, or uint16, the bits of bfloat16.
        b: [..., K, N] alike; leading dimensions broadcast to those of out.
        out: [..., M, N] float32.
        add: whether to add into `out`; only of matrices.
        parts: threads that share the work of matrices; None: all, where it is worth while.
    """
    if out.ndim > 2:
        _batch(a, b, out)
        return
    kind, inner = instructions().kind, a.shape[1]
    if not out.size:
        return
    if not inner:
        if not add:
            out[...] = 0
        return
    parts = parts or _threads_for(kind, out.size * inner)
    if kind == isa.NONE:
        _in_float32(a, b, out, add, parts)
    elif _by_rows(out):
        _by_instructions(kind, a, b, out, add, parts)
    else:
        made = np.array(out, order="C") if add else np.empty(out.shape, out.dtype)
        _by_instructions(kind, a, b, made, add, parts)
        out[...] = made


def scratch_bytes(rows: int, inner: int, columns: int, parts: Optional[int] = None) -> int:
    """Bytes of scratch memory that `product` takes; see there."""
    work = rows * inner * columns
    if not work:
        return 0
    kind = instructions().kind
    parts = parts or _threads_for(kind, work)
    if kind == isa.NONE:
        own = rounded(4 * rows * inner) + rounded(4 * inner * columns)
        return own + float_scratch_bytes(rows, inner, columns, 4)
    blocks = _Blocks.of(kind, rows, inner, columns, parts)
    return blocks.shared_bytes + parts * (blocks.block_bytes + blocks.sums_bytes)


def _threads_for(kind: str, work: int) -> int:
    return threads() if work >= _LEAST_WORK[kind] else 1


class _Blocks(NamedTuple):
    """How a product is cut.

    Attributes:
        tall: whether blocks are of rows, B being shared; else of columns, and A is.
        inner: inner indices of a part.
        number: how many blocks there are.
        unit: rows or columns that blocks are multiples of.
        units: how many of those there are.
        shared_bytes: of the operand that all threads read.
        block_bytes: of a block of the other one.
        sums_bytes: of sums that are not complete, of a block.
    """

    tall: bool
    inner: int
    number: int
    unit: int
    units: int
    shared_bytes: int
    block_bytes: int
    sums_bytes: int

    @classmethod
    def of(cls, kind: str, rows: int, inner: int, columns: int, parts: int) -> _Blocks:
        tall = rows >= columns
        length, unit = (rows, _HEIGHTS[kind]) if tall else (columns, COLUMNS)
        step = SLABS * SLAB
        inner = min(inner, max(step, _SHARED_BYTES // (2 * min(rows, columns)) // step * step))

        def size(of_rows: bool, many: int) -> int:
            return _slab_bytes(kind, many, inner) if of_rows else _panel_bytes(inner, many)

        units = -(-length // unit)
        number = max(
            min(units, 1 if parts == 1 else _PARTS * parts),
            -(-units // max(1, _BLOCK_BYTES // size(tall, unit))),
        )
        most = -(-units // number)
        waiting = most if kind == isa.TILES and chunk_size(_up(inner, 32)) < inner else 1
        shared = size(not tall, min(rows, columns))
        block = size(tall, most * unit)
        return cls(tall, inner, number, unit, units, shared, block, _ROOM * waiting)


def _trial() -> float:
    """How many times as fast as a float32 product one by AVX512-BF16 is, on this thread."""
    rows, inner, columns = _TRIAL_SHAPE
    random = np.random.default_rng(0)
    a = random.standard_normal((rows, inner), np.float32)
    b = random.standard_normal((inner, columns), np.float32)
    out = np.empty((rows, columns), np.float32)

    def in_float32() -> None:
        gemm(a, b, out)

    def by_instructions() -> None:
        _by_instructions(isa.VECTOR, a, b, out, False, 1)

    best = {in_float32: float("inf"), by_instructions: float("inf")}
    for kind in best:
        kind()  # compiled, or read from the cache
    until = time.thread_time() + _TRIAL_S
    while time.thread_time() < until:
        for kind in best:
            start = time.thread_time()  # other programs may hold the cores
            kind()
            best[kind] = min(best[kind], time.thread_time() - start)
    return best[in_float32] / best[by_instructions]


def _batch(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """One product for every index of the leading dimensions, several indices a thread."""
    lead = out.shape[:-2]
    a = np.broadcast_to(a, lead + a.shape[-2:])
    b = np.broadcast_to(b, lead + b.shape[-2:])
    indices = list(np.ndindex(*lead))
    if len(indices) < threads():
        for index in indices:
            product(a[index], b[index], out[index])
        return
    chunks = min(len(indices), 2 * threads())

    def run(i: int) -> None:
        for index in indices[len(indices) * i // chunks : len(indices) * (i + 1) // chunks]:
            product(a[index], b[index], out[index], parts=1)

    for_chunks(run, chunks, out.size * a.shape[-1])


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _slab_bytes(kind: str, rows: int, inner: int) -> int:
    if kind == isa.TILES:
        return _panel_bytes(inner, rows)
    return rounded(-(-inner // SLAB) * _up(rows, _HEIGHTS[kind]) * PITCH)


def _panel_bytes(inner: int, columns: int) -> int:
    return rounded(2 * _up(inner, 32) * _up(columns, COLUMNS))


def _by_rows(x: np.ndarray) -> bool:
    """Whether neighbours in a row follow each other in memory."""
    return x.strides[1] == x.itemsize or x.shape[1] == 1


def _readable(x: np.ndarray) -> np.ndarray:
    """The matrix, copied where neither rows nor columns are contiguous."""
    return x if _by_rows(x) or _by_rows(x.T) else np.ascontiguousarray(x)


class _Operand(NamedTuple):
    """An operand as compiled code takes it.

    Attributes:
        example: a number of its dtype.
        turned: whether its columns are contiguous, not its rows.
        lying: address, bytes from row to row, rows and columns of what lies by rows: the matrix, or
            its transpose.
    """

    example: Any
    turned: bool
    lying: tuple[int, int, int, int]

    @classmethod
    def of(cls, x: np.ndarray) -> _Operand:
        turned = not _by_rows(x)
        lying = x.T if turned else x
        rows, columns = lying.shape
        given = lying.ctypes.data, lying.strides[0], rows, columns
        return cls(x.dtype.type(0), turned, given)


def _pack_left(kind: str, a: np.ndarray, room: np.ndarray, parts: int) -> tuple[int, int]:
    """Packs A [M, K]; (address, rows with those of zeros)."""
    height = _up(a.shape[0], _HEIGHTS[kind])
    layout = (height, _up(a.shape[1], 32) if kind == isa.TILES else 0)
    example, turned, lying = _Operand.of(a)
    count, pack = -(-a.shape[0] // 16), pack_turned_rows if turned else pack_rows
    spread(pack, count, min(count, parts), example, lying, room.ctypes.data, layout)
    return room.ctypes.data, height


def _pack_right(b: np.ndarray, room: np.ndarray, parts: int) -> tuple[int, int]:
    """Packs B [K, N]; (its address, 0)."""
    pairs = _up(b.shape[0], 32) // 2
    example, turned, lying = _Operand.of(b)
    count, pack = -(-b.shape[1] // COLUMNS), pack_turned_columns if turned else pack_columns
    spread(pack, count, min(count, parts), example, lying, room.ctypes.data, pairs)
    return room.ctypes.data, 0


def _by_instructions(
    kind: str, a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, parts: int
) -> None:
    """`product` of matrices, rows of `out` contiguous, none of the sizes 0."""
    a, b = _readable(a), _readable(b)
    (rows, columns), inner = out.shape, a.shape[1]
    blocks = _Blocks.of(kind, rows, inner, columns, parts)
    with borrowed((blocks.shared_bytes,), np.uint8) as shared:
        for k in range(0, inner, blocks.inner):
            part = slice(k, k + blocks.inner)
            more = add or k > 0
            _multiply_part(kind, blocks, a[:, part], b[part], out, more, parts, shared)


def _multiply_part(
    kind: str,
    blocks: _Blocks,
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    add: bool,
    parts: int,
    shared: np.ndarray,
) -> None:
    """One operand is packed here, the other block by block."""
    count = 1 if parts == 1 else 2 * parts
    packed = _pack_right(b, shared, count) if blocks.tall else _pack_left(kind, a, shared, count)
    step = blocks.block_bytes + blocks.sums_bytes
    with borrowed((parts * step,), np.uint8) as rooms:
        spread(
            _vector_blocks if kind == isa.VECTOR else _tile_blocks,
            blocks.number,
            1 if parts == 1 else blocks.number,
            (blocks.number, blocks.units, blocks.unit),
            blocks.tall,
            (*out.shape, a.shape[1], int(add)),
            tuple(_Operand.of(a if blocks.tall else b)),
            packed,
            (out.ctypes.data, out.strides[0]),
            (rooms.ctypes.data, step, blocks.block_bytes),
            _SHAPES.ctypes.data,
            rooms=parts,
        )


@jit()
def _pack_block(tall, first, last, operand, target, unit, tiled):
    """Packs rows of A, or columns of B, from first to last; (address, rows with those of zeros).

    Args:
        tall: whether they are rows of A.
        first, last: the range.
        operand: an _Operand.
        target: address.
        unit: rows of A are rounded up to multiples of it.
        tiled: whether for tiles.
    """
    example, turned, (at, step, rows, columns) = operand
    count = last - first
    if tall != turned:  # they lie as rows
        lying, inner = (at + first * step, step, count, columns), columns
    else:
        lying, inner = (at + first * bytes_of(example), step, rows, count), rows
    even = -(-inner // 32) * 32
    if not tall:
        groups = -(-count // COLUMNS)
        if turned:
            pack_turned_columns(0, groups, example, lying, target, even // 2)
        else:
            pack_columns(0, groups, example, lying, target, even // 2)
        return target, 0
    height, groups = -(-count // unit) * unit, -(-count // 16)
    layout = (height, even if tiled else 0)
    if turned:
        pack_turned_rows(0, groups, example, lying, target, layout)
    else:
        pack_rows(0, groups, example, lying, target, layout)
    return target, height


@jit()
def _block(index, cut, tall, bounds, operand, packed, target, room, tiled):
    """Packs the operand's part of a block into `room`; other arguments are as of `_tile_blocks`.

    Returns:
        What the block's product takes: its bounds, A and B, each (address, rows with those of
        zeros), and (address, bytes from row to row) of its place.
    """
    rows, columns, inner, add = bounds
    number, units, unit = cut
    even = -(-inner // 32) * 32
    first = units * index // number * unit
    last = min(rows if tall else columns, units * (index + 1) // number * unit)
    block = _pack_block(tall, first, last, operand, room, unit, tiled)
    if tall:
        place = target[0] + first * target[1], target[1]
        return (last - first, columns, even, add), block, packed, place
    return (rows, last - first, even, add), packed, block, (target[0] + 4 * first, target[1])


@jit()
def _tile_blocks(start, stop, thread, cut, tall, bounds, operand, packed, target, rooms, shapes):
    """Blocks from start to stop of a product by tiles.

    Args:
        start: first block.
        stop: the one behind the last.
        thread: number of the thread.
        cut: number of blocks; rows or columns are so many units of that many.
        tall: whether blocks are of rows, and `operand` is A; else it is B.
        bounds: (M, N, K, whether to add).
        operand: the one that is packed block by block.
        packed: (address, rows with those of zeros) of the other one.
        target: (address, bytes from row to row) of the product.
        rooms: (address, bytes from one thread's to the next, bytes of a packed block).
        shapes: address of the tiles' configuration.
    """
    room = rooms[0] + thread * rooms[1]
    sums = (room + rooms[2], chunk_size(-(-bounds[2] // 32) * 32), 1 if tall else 0)
    for index in range(start, stop):
        sizes, a, b, place = _block(index, cut, tall, bounds, operand, packed, target, room, True)
        tile_product(sizes, a[0], b[0], place, sums, shapes)


@jit()
def _vector_blocks(start, stop, thread, cut, tall, bounds, operand, packed, target, rooms, shapes):
    """As `_tile_blocks`, by vectors; `shapes` is not read."""
    room = rooms[0] + thread * rooms[1]
    for index in range(start, stop):
        sizes, a, b, place = _block(index, cut, tall, bounds, operand, packed, target, room, False)
        vector_product(sizes, a, b[0], place, room + rooms[2])


def _tile_shapes() -> np.ndarray:
    """The configuration of AMX's tiles: palette 1, eight of 16 rows of 64 bytes."""
    shapes = aligned(64)
    shapes[:] = 0
    shapes[0] = 1
    shapes[16:32].view(np.uint16)[:] = 64
    shapes[48:56] = 16
    return shapes


_SHAPES = _tile_shapes()


@jit()
def _round(start, stop, x, out):
    part, result = x[start:stop], out[start:stop]
    for i in range(part.size):
        number = as_float(part[i])
        bits = np.uint32(bits_of(number))
        nearest = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        some = np.uint32(bits | np.uint32(0x400000)) if number != number else nearest
        tiny = (bits & np.uint32(0x7F800000)) == 0
        kept = np.uint32(0x80000000) if tiny else np.uint32(0xFFFF0000)
        result[i] = float_of(np.int32(some & kept))


def _round_into(x: np.ndarray, out: np.ndarray, parts: int) -> None:
    """out = x rounded to bfloat16 as the instructions read it.

    Args:
        x: float32, or the bits of bfloat16, C-contiguous.
        out: float32, C-contiguous.
        parts: threads; 1 or all.
    """
    source, target = x.reshape(-1), out.reshape(-1)
    if parts == 1:
        _round(0, x.size, source, target)
    else:
        for_rows(_round, x.size, x.size, source, target)


def _in_float32(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, parts: int) -> None:
    """`product` of matrices without instructions: BLAS multiplies what was rounded."""
    with borrowed(_lying(a).shape) as left, borrowed(_lying(b).shape) as right:
        for x, room in ((a, left), (b, right)):
            _round_into(np.ascontiguousarray(_lying(x)), room, parts)
        a, b = (room.T if _is_turned(x) else room for x, room in ((a, left), (b, right)))
        (gemm if parts == 1 else float_product)(a, b, out, add)


def _is_turned(x: np.ndarray) -> bool:
    return not x.flags.c_contiguous and x.T.flags.c_contiguous


def _lying(x: np.ndarray) -> np.ndarray:
    return x.T if _is_turned(x) else x
