"""Rounds float32 operands of a product to bfloat16, into the layouts of compiled_tiles.py.

Letters: M, K, N sizes of a product. Of two neighbours along K, a pair, one 32-bit word is made, the
first in its lower half. A becomes slabs [K / SLAB, M, PITCH bytes], B panels [N / 32, K / 2, 32] of
words. Where neighbours along K do not follow each other as the layout wants them, blocks of 16 x 16
words are turned in registers. What lies beyond an edge becomes zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_tiles import COLUMNS, PITCH, SLAB

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS, _HALVES = ir.VectorType(_I32, 16), ir.VectorType(ir.IntType(16), 16)
# Words of a block that is turned.
_SIDE = 16


def _all(number: int) -> Any:
    return ir.Constant(_WORDS, [number] * _SIDE)


def _upper_half(builder: Any, bits: Any) -> Any:
    """Bits of 16 float32 numbers, rounded to bfloat16 in the upper half; the lower is not zero."""
    last = builder.and_(builder.lshr(bits, _all(16)), _all(1))
    rounded = builder.add(builder.add(bits, _all(0x7FFF)), last)
    unsigned = builder.and_(bits, _all(0x7FFFFFFF))
    nan = builder.icmp_unsigned(">", unsigned, _all(0x7F800000))
    return builder.select(nan, builder.or_(bits, _all(0x400000)), rounded)


def _load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _WORDS.as_pointer()), align=4)


def _pair_of_rows(builder: Any, address: Any, step: Any) -> Any:
    """16 words from as many columns of two rows."""
    low = _upper_half(builder, _load(builder, address))
    high = _upper_half(builder, _load(builder, builder.add(address, step)))
    return builder.or_(builder.lshr(low, _all(16)), builder.and_(high, _all(0xFFFF0000)))


def _pairs_of_row(builder: Any, address: Any) -> Any:
    """16 words from 32 neighbours of a row."""
    halves = []
    for offset in (0, 64):
        bits = _upper_half(builder, _load(builder, builder.add(address, _I64(offset))))
        halves.append(builder.trunc(builder.lshr(bits, _all(16)), _HALVES))
    joined = ir.Constant(ir.VectorType(_I32, 32), list(range(32)))
    return builder.bitcast(builder.shuffle_vector(halves[0], halves[1], joined), _WORDS)


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """16 rows of 16 words as columns: four times, the halves of the list are interleaved."""
    masks = [
        ir.Constant(_WORDS, [n // 2 + start + 16 * (n % 2) for n in range(16)]) for start in (0, 8)
    ]
    for _ in range(4):
        rows = [
            builder.shuffle_vector(rows[i], rows[i + 8], mask) for i in range(8) for mask in masks
        ]
    return rows


def _turning(paired_rows: bool) -> Any:
    """An intrinsic (source, its step, target, its step): 16 x 16 words, turned."""

    def turn(typingctx: Any, source: Any, step: Any, target: Any, to_step: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, step, target, to_step = args
            rows = []
            for i in range(_SIDE):
                at = builder.add(source, builder.mul(step, _I64(2 * i if paired_rows else i)))
                made = (
                    _pair_of_rows(builder, at, step) if paired_rows else _pairs_of_row(builder, at)
                )
                rows.append(made)
            for i, row in enumerate(_turned(builder, rows)):
                at = builder.add(target, builder.mul(to_step, _I64(i)))
                builder.store(row, builder.inttoptr(at, _WORDS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return intrinsic(turn)


_turn_pairs_of_rows, _turn_pairs_of_row = _turning(True), _turning(False)


def _copying(pairs: bool) -> Any:
    """An intrinsic (source, its step, target): 16 words, of two rows or of one."""

    def copy(typingctx: Any, source: Any, step: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, step, target = args
            made = _pair_of_rows(builder, source, step) if pairs else _pairs_of_row(builder, source)
            builder.store(made, builder.inttoptr(target, _WORDS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return intrinsic(copy)


_copy_pairs_of_rows, _copy_pairs_of_row = _copying(True), _copying(False)


@intrinsic
def _number_at(typingctx: Any, address: Any) -> Any:
    """The float32 at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.FloatType().as_pointer()), align=4)

    return types.float32(types.int64), generate


@jit()
def _fill(room: Any, source: Any, step: Any, rows: Any, columns: Any) -> None:
    """room [32, 32] = the matrix at an address, rows `step` bytes apart, and zeros around it."""
    for i in range(room.shape[0]):
        for j in range(room.shape[1]):
            inside = i < rows and j < columns
            room[i, j] = _number_at(source + i * step + 4 * j) if inside else np.float32(0)


@jit()
def pack_rows(start: Any, stop: Any, x: Any, target: Any, height: Any) -> None:
    """A's rows [16 start, 16 stop) from x [M, K], whose rows are contiguous.

    Args:
        start, stop: range of groups of 16 rows.
        x: (address, bytes from row to row, sizes as it lies), float32.
        target: address of the slabs.
        height: rows of a slab.
    """
    source, step, rows, inner = x
    room = np.empty((32, 32), np.float32)
    for i in range(16 * start, min(16 * stop, height)):
        for k in range(0, inner, 32):
            to = target + (k // SLAB * height + i) * PITCH + 2 * (k % SLAB)
            given = source + i * step + 4 * k
            if i < rows and k + 32 <= inner:
                _copy_pairs_of_row(given, 0, to)
            else:
                _fill(room, given, step, min(1, rows - i), inner - k)
                _copy_pairs_of_row(room.ctypes.data, 0, to)


@jit()
def pack_turned_rows(start: Any, stop: Any, x: Any, target: Any, height: Any) -> None:
    """A's rows [16 start, 16 stop) from x [K, M], the transpose, whose rows are contiguous."""
    source, step, inner, rows = x
    room = np.empty((32, 32), np.float32)
    for k in range(0, inner, 32):
        for i in range(16 * start, min(16 * stop, height), 16):
            to = target + (k // SLAB * height + i) * PITCH + 2 * (k % SLAB)
            given = source + k * step + 4 * i
            if i + 16 <= rows and k + 32 <= inner:
                _turn_pairs_of_rows(given, step, to, PITCH)
            else:
                _fill(room, given, step, inner - k, rows - i)
                _turn_pairs_of_rows(room.ctypes.data, 128, to, PITCH)


@jit()
def pack_columns(start: Any, stop: Any, x: Any, target: Any, pairs: Any) -> None:
    """B's panels [start, stop) from x [K, N], whose rows are contiguous.

    Args:
        start, stop: range of panels.
        x: as for pack_rows.
        target: address of the panels.
        pairs: pairs of a panel.
    """
    source, step, inner, columns = x
    room = np.empty((32, 32), np.float32)
    for panel in range(start, stop):
        for q in range(pairs):
            for j in range(COLUMNS * panel, COLUMNS * panel + 32, 16):
                to = target + 4 * (COLUMNS * (panel * pairs + q) + j % COLUMNS)
                given = source + 2 * q * step + 4 * j
                if 2 * q + 2 <= inner and j + 16 <= columns:
                    _copy_pairs_of_rows(given, step, to)
                else:
                    _fill(room, given, step, inner - 2 * q, columns - j)
                    _copy_pairs_of_rows(room.ctypes.data, 128, to)


@jit()
def pack_turned_columns(start: Any, stop: Any, x: Any, target: Any, pairs: Any) -> None:
    """B's panels [start, stop) from x [N, K], the transpose, whose rows are contiguous."""
    source, step, columns, inner = x
    room = np.empty((32, 32), np.float32)
    for panel in range(start, stop):
        for j in range(COLUMNS * panel, COLUMNS * panel + 32, 16):
            for q in range(0, pairs, 16):
                to = target + 4 * (COLUMNS * (panel * pairs + q) + j % COLUMNS)
                given = source + j * step + 8 * q
                if 2 * q + 32 <= inner and j + 16 <= columns:
                    _turn_pairs_of_row(given, step, to, 4 * COLUMNS)
                else:
                    _fill(room, given, step, columns - j, inner - 2 * q)
                    _turn_pairs_of_row(room.ctypes.data, 128, to, 4 * COLUMNS)
