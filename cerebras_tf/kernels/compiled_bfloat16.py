"""Products of float32 matrices whose elements are rounded to bfloat16, sums in float32.

Letters: M, K, N sizes of a product. Operands are rounded and laid out for the processor's
instructions in scratch memory, by all threads; then rows or columns of the result are spread over
them. Which instructions, `instructions()` says; without any, rounded operands go to BLAS. Every
element's sum runs over K in order: by instructions, bits do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels import instructions as isa
from cerebras_tf.kernels.blas import gemm
from cerebras_tf.kernels.blas import product as float_product
from cerebras_tf.kernels.blas import scratch_bytes as float_scratch_bytes
from cerebras_tf.kernels.compiled_bits import bits_of, float_of
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER, jit
from cerebras_tf.kernels.compiled_operands import (
    pack_columns,
    pack_rows,
    pack_turned_columns,
    pack_turned_rows,
)
from cerebras_tf.kernels.compiled_threads import for_chunks, for_rows, threads
from cerebras_tf.kernels.compiled_tiles import (
    COLUMNS,
    PITCH,
    SLAB,
    TILE_ROWS,
    VECTOR_ROWS,
    tile_product,
    vector_product,
)
from cerebras_tf.kernels.scratch import aligned, borrowed, rounded

# Multiplications, and numbers to be packed, below which one thread does all.
_LEAST_WORK, _LEAST_NUMBERS = 1 << 21, 1 << 16
# Chunks a thread of a large product: more, so that a thread that is held up hands work over.
_PARTS = 4
_HEIGHTS = {isa.VECTOR: VECTOR_ROWS, isa.TILES: TILE_ROWS}
_ROOM = (32, 32)  # sums of a block at an edge
_TRIAL_SHAPE, _TRIAL_S = (192, 768, 768), 0.1
_Job = tuple[Callable[..., None], int, int, tuple[Any, ...]]


class Columns(NamedTuple):
    """The right operand of products, packed.

    Attributes:
        kind: of instruction, one of instructions.KINDS.
        panels: uint8, as compiled_tiles.py reads it; for no instruction float32 [K, N], rounded.
        inner: K.
        columns: N.
    """

    kind: str
    panels: np.ndarray
    inner: int
    columns: int


@functools.cache
def instructions() -> isa.Choice:
    """What multiplies bfloat16 numbers on this machine; see instructions.choose."""
    return isa.choose(_trial, CACHE_FOLDER)


def product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a b of operands rounded to bfloat16; they may be transposed views.

    Args:
        a: [..., M, K] float32, rows or columns contiguous.
        b: [..., K, N] float32; leading dimensions broadcast to those of out.
        out: [..., M, N] float32, rows contiguous.
    """
    if out.ndim > 2:
        _batch(a, b, out)
        return
    with packed(b) as columns:
        multiply(a, columns, out)


@contextlib.contextmanager
def packed(b: np.ndarray, parts: Optional[int] = None) -> Iterator[Columns]:
    """b [K, N] float32, perhaps a transposed view, packed in scratch memory for some products.

    Args:
        b: the operand.
        parts: threads that share the work; None: all, where it is worth while.
    """
    with _packed(instructions().kind, b, parts or _threads_for(b.size, _LEAST_NUMBERS)) as columns:
        yield columns


def multiply(
    a: np.ndarray, b: Columns, out: np.ndarray, add: bool = False, parts: Optional[int] = None
) -> None:
    """out = a b, or out += a b, where b is packed.

    Args:
        a: [M, K] float32, rows or columns contiguous.
        b: [K, N].
        out: [M, N] float32.
        add: whether to add into `out`.
        parts: threads that share the work; None: all, where it is worth while.
    """
    parts = parts or _threads_for(out.size * b.inner, _LEAST_WORK)
    if not out.size:
        return
    if not b.inner:
        if not add:
            out[...] = 0
    elif b.kind == isa.NONE:
        with _packed(isa.NONE, a, parts) as left:
            (gemm if parts == 1 else float_product)(left.panels, b.panels, out, add)
    elif _by_rows(out):
        _multiply(a, b, out, add, parts)
    else:
        made = np.array(out, order="C") if add else np.empty(out.shape, out.dtype)
        _multiply(a, b, made, add, parts)
        out[...] = made


def columns_bytes(inner: int, columns: int) -> int:
    """Bytes of scratch memory that `packed` takes."""
    if instructions().kind == isa.NONE:
        return rounded(4 * inner * columns)
    return _panel_bytes(inner, columns)


def multiply_bytes(rows: int, inner: int, columns: int) -> int:
    """Bytes of scratch memory that `multiply` takes on all threads."""
    kind = instructions().kind
    if kind == isa.NONE:
        return rounded(4 * rows * inner) + float_scratch_bytes(rows, inner, columns, 4)
    return _slab_bytes(kind, rows, inner) + rounded(4 * _ROOM[0] * _ROOM[1]) * threads()


def _threads_for(work: int, least: int) -> int:
    return threads() if work >= least else 1


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
        with _packed(isa.VECTOR, b, 1) as panels:
            multiply(a, panels, out, parts=1)

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
            with packed(b[index], 1) as columns:
                multiply(a[index], columns, out[index], parts=1)

    for_chunks(run, chunks, out.size * a.shape[-1])


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _height(kind: str, rows: int) -> int:
    """Rows of a slab: whole blocks of sums, and whole groups of 16, which packing writes."""
    return _up(rows, 48 if kind == isa.VECTOR else TILE_ROWS)


def _slab_bytes(kind: str, rows: int, inner: int) -> int:
    return rounded(-(-inner // SLAB) * _height(kind, rows) * PITCH)


def _panel_bytes(inner: int, columns: int) -> int:
    return rounded(2 * _up(inner, 32) * _up(columns, COLUMNS))


def _by_rows(x: np.ndarray) -> bool:
    """Whether neighbours in a row follow each other in memory."""
    return x.strides[1] == x.itemsize or x.shape[1] == 1


def _readable(x: np.ndarray) -> tuple[bool, tuple[int, int, int, int], np.ndarray]:
    """Whether the matrix lies by rows, (address, step, rows, columns) as it lies, and its owner.

    It is copied where neither rows nor columns are contiguous.
    """
    if not _by_rows(x) and not _by_rows(x.T):
        x = np.ascontiguousarray(x)
    by_rows = _by_rows(x)
    lying = x if by_rows else x.T
    (rows, columns), step = lying.shape, lying.strides[0]
    return by_rows, (lying.ctypes.data, step, rows, columns), x


@contextlib.contextmanager
def _packed(kind: str, b: np.ndarray, parts: int) -> Iterator[Columns]:
    inner, columns = b.shape
    if kind == isa.NONE:
        turned = not b.flags.c_contiguous and b.T.flags.c_contiguous
        with borrowed(b.shape[::-1] if turned else b.shape) as room:
            _round_into(np.ascontiguousarray(b.T if turned else b), room, parts)
            yield Columns(kind, room.T if turned else room, inner, columns)
        return
    by_rows, lying, _owner = _readable(b)
    with borrowed((_panel_bytes(inner, columns),), np.uint8) as panels:
        pack = pack_columns if by_rows else pack_turned_columns
        given = (lying, panels.ctypes.data, _up(inner, 32) // 2)
        _pack(pack, -(-columns // COLUMNS), given, parts)
        yield Columns(kind, panels, inner, columns)


def _pack(pack: Any, count: int, given: tuple[Any, ...], parts: int) -> None:
    """pack(start, stop, *given) over [0, count)."""
    chunks = 1 if parts == 1 else min(count, 2 * parts)

    def run(i: int) -> None:
        pack(count * i // chunks, count * (i + 1) // chunks, *given)

    _run(run, chunks)


def _run(run: Callable[[int], None], chunks: int) -> None:
    for_chunks(run, chunks, 1 << 40)  # whether threads pay was judged before


def _multiply(a: np.ndarray, b: Columns, out: np.ndarray, add: bool, parts: int) -> None:
    """Packs a, then multiplies by instructions, in a few chunks a thread."""
    (rows, columns), inner, kind = out.shape, b.inner, b.kind
    height = _height(kind, rows)
    by_rows, lying, _owner = _readable(a)
    tall = rows >= columns
    length, unit = (rows, _HEIGHTS[kind]) if tall else (columns, COLUMNS)
    units = -(-length // unit)
    chunks = 1 if parts == 1 else min(_PARTS * parts, units)
    numbers, target = (_up(inner, 32), int(add)), (out.ctypes.data, out.strides[0])
    with borrowed((_slab_bytes(kind, rows, inner),), np.uint8) as slabs:
        at = slabs.ctypes.data
        pack = pack_rows if by_rows else pack_turned_rows
        _pack(pack, -(-rows // 16), (lying, at, height), parts)

        def run(i: int) -> None:
            first, last = (min(length, units * n // chunks * unit) for n in (i, i + 1))
            part = (first, last, 0, columns) if tall else (0, rows, first, last)
            with borrowed(_ROOM) as room:
                given = ((part, numbers), (at, height), b.panels.ctypes.data, target)
                if kind == isa.VECTOR:
                    vector_product(*given, room.ctypes.data)
                else:
                    tile_product(*given, room.ctypes.data, _SHAPES.ctypes.data)

        _run(run, chunks)


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
def _round(start: Any, stop: Any, x: Any, out: Any) -> None:
    part, result = x[start:stop], out[start:stop]
    for i in range(part.size):
        bits = np.uint32(bits_of(part[i]))
        nearest = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        some = np.uint32(bits | np.uint32(0x400000)) if part[i] != part[i] else nearest
        tiny = (some & np.uint32(0x7F800000)) == 0
        kept = np.uint32(0x80000000) if tiny else np.uint32(0xFFFF0000)
        result[i] = float_of(np.int32(some & kept))


def _round_into(x: np.ndarray, out: np.ndarray, parts: int) -> None:
    """out = x rounded to bfloat16 as the instructions read it; float32, C-contiguous."""
    source, target = x.reshape(-1), out.reshape(-1)
    if parts == 1:
        _round(0, x.size, source, target)
    else:
        for_rows(_round, x.size, x.size, source, target)
