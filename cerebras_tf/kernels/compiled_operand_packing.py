"""Lays operands of a product in bfloat16 out as compiled_tiles.py reads them.

Letters: M, K, N sizes of a product. Of two neighbours along K, a pair, one 32-bit word is made, the
first in its lower half: float32 numbers are rounded, subnormal ones to zero, as the instructions
read them; uint16 are bits of bfloat16 already (rounded to rest, numbers within 2^-135 below 2^-126
have become that). A becomes slabs [K / SLAB, M, PITCH bytes] or panels [M / 32, K / 32, 32, 16] of
words, B panels [N / 32, K / 2, 32] of words. Where neighbours along K do not follow each other as
the layout wants them, blocks of 16 x 16 words are turned in registers. What lies beyond an edge
becomes zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_bfloat16_microkernels import COLUMNS, FLOATS, PAIRS, PITCH, SLAB
from cerebras_tf.kernels.compiled_jit import inlined, jit

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I32, 16)
_HALVES, _ALL_HALVES = (ir.VectorType(ir.IntType(16), size) for size in (16, 32))
# Numbers 0, 16, 1, 17 ... of two halves.
_IN_TURN = ir.Constant(ir.VectorType(_I32, 32), [i // 2 + 16 * (i % 2) for i in range(32)])
# Words of a block that is turned.
_SIDE = 16
# Panels that are made side by side from rows: of one alone, each row gives but two lines, and of
# 25,000 columns in a row that took 1.0 ns a number on a Xeon, with eight 0.3.
_TOGETHER = 8


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def _rounded(builder, low, high):
    """16-bit [32] of two float32 [16], rounded to nearest even by AVX512-BF16; subnormals are 0."""
    signature = ir.FunctionType(PAIRS, [FLOATS, FLOATS])
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    round_both = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.bitcast(builder.call(round_both, [high, low]), _ALL_HALVES)


def _pair_of_rows(builder: Any, is_half: bool, address: Any, step: Any) -> Any:
    """16 words from as many columns of two rows."""
    below = builder.add(address, step)
    if is_half:
        low, high = (_load(builder, at, _HALVES) for at in (address, below))
        both = builder.shuffle_vector(low, high, _IN_TURN)
    else:
        low, high = (_load(builder, at, FLOATS) for at in (address, below))
        both = _rounded(builder, low, high)
        both = builder.shuffle_vector(both, both, _IN_TURN)
    return builder.bitcast(both, _WORDS)


def _pairs_of_row(builder: Any, is_half: bool, address: Any, step: Any) -> Any:
    """16 words from 32 neighbours of a row."""
    if is_half:
        return _load(builder, address, _WORDS)
    low, high = (_load(builder, builder.add(address, _I64(at)), FLOATS) for at in (0, 64))
    return builder.bitcast(_rounded(builder, low, high), _WORDS)


def turned(builder: Any, rows: list[Any]) -> list[Any]:
    """16 rows of 16 words as columns: four times, the halves of the list are interleaved."""
    masks = [
        ir.Constant(_WORDS, [n // 2 + start + 16 * (n % 2) for n in range(16)]) for start in (0, 8)
    ]
    for _ in range(4):
        rows = [
            builder.shuffle_vector(rows[i], rows[i + 8], mask) for i in range(8) for mask in masks
        ]
    return rows


# Intrinsics learn from an example of its elements, a float32 or uint16, what a matrix is made of.


def _turning(words: Any, rows: int) -> Any:
    """An intrinsic (example, source, its step, target, its step): 16 x 16 words, turned.

    Args:
        words: what makes 16 of them.
        rows: of the source in each 16.
    """

    def turn(typing, example, source, step, target, to_step):
        def generate(context, builder, signature, args):
            _, source, step, target, to_step = args
            made = []
            for i in range(_SIDE):
                at = builder.add(source, builder.mul(step, _I64(rows * i)))
                made.append(words(builder, example == types.uint16, at, step))
            for i, row in enumerate(turned(builder, made)):
                at = builder.add(target, builder.mul(to_step, _I64(i)))
                builder.store(row, builder.inttoptr(at, _WORDS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(example, *[types.int64] * 4), generate

    return intrinsic(turn)


_turn_pairs_of_rows, _turn_pairs_of_row = _turning(_pair_of_rows, 2), _turning(_pairs_of_row, 1)


def _copying(words):
    """An intrinsic (example, source, its step, target): 16 words."""

    def copy(typing, example, source, step, target):
        def generate(context, builder, signature, args):
            _, source, step, target = args
            made = words(builder, example == types.uint16, source, step)
            builder.store(made, builder.inttoptr(target, _WORDS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(example, *[types.int64] * 3), generate

    return intrinsic(copy)


_copy_pairs_of_rows, _copy_pairs_of_row = _copying(_pair_of_rows), _copying(_pairs_of_row)


@intrinsic
def bytes_of(typing, example):
    """Bytes of an element."""

    def generate(context, builder, signature, args):
        return _I64(example.bitwidth // 8)

    return types.int64(example), generate


@intrinsic
def number_at(typing, example, address):
    """The element at an address."""

    def generate(context, builder, signature, args):
        kind = context.get_value_type(example)
        return builder.load(builder.inttoptr(args[1], kind.as_pointer()), align=2)

    return example(example, types.int64), generate


@intrinsic
def as_float(typing, element):
    """An element as the float32 that it is, or that it is the upper half of."""

    def generate(context, builder, signature, args):
        if element == types.float32:
            return args[0]
        upper = builder.shl(builder.zext(args[0], _I32), _I32(16))
        return builder.bitcast(upper, ir.FloatType())

    return types.float32(element), generate


@jit()
def _fill(room, source, step, rows, columns):
    """room [32, 32] = the matrix at an address, rows `step` bytes apart, and zeros around it."""
    zero = room.dtype.type(0)
    size = bytes_of(zero)
    for i in range(room.shape[0]):
        for j in range(room.shape[1]):
            inside = i < rows and j < columns
            room[i, j] = number_at(zero, source + i * step + size * j) if inside else zero


@inlined
def _place(i, k, layout):
    """Bytes in front of 32 inner indices from `k`, a multiple of 32, of A's row i."""
    height, inner = layout
    if inner:
        return 64 * (i // 32 * inner + k + i % 32)
    return (k // SLAB * height + i) * PITCH + 2 * (k % SLAB)


@jit()
def pack_rows(start, stop, zero, x, target, layout):
    """A's rows [16 start, 16 stop) from x [M, K], whose rows are contiguous.

    Args:
        start, stop: range of groups of 16 rows.
        zero: float32 or uint16, as elements are.
        x: (address, bytes from row to row, sizes as it lies).
        target: address of the slabs or panels.
        layout: (rows with those of zeros, 0) for slabs, (these, inner indices with those of zeros)
            for panels.
    """
    source, step, rows, inner = x
    size = bytes_of(zero)
    room = np.full((32, 32), zero)
    for i in range(16 * start, min(16 * stop, layout[0])):
        for k in range(0, inner, 32):
            to = target + _place(i, k, layout)
            given = source + i * step + size * k
            if i < rows and k + 32 <= inner:
                _copy_pairs_of_row(zero, given, 0, to)
            else:
                _fill(room, given, step, min(1, rows - i), inner - k)
                _copy_pairs_of_row(zero, room.ctypes.data, 0, to)


@jit()
def pack_turned_rows(start, stop, zero, x, target, layout):
    """A's rows [16 start, 16 stop) from x [K, M], the transpose, whose rows are contiguous."""
    source, step, inner, rows = x
    size = bytes_of(zero)
    room = np.full((32, 32), zero)
    to_step = 64 if layout[1] else PITCH
    for k in range(0, inner, 32):
        for i in range(16 * start, min(16 * stop, layout[0]), 16):
            to = target + _place(i, k, layout)
            given = source + k * step + size * i
            if i + 16 <= rows and k + 32 <= inner:
                _turn_pairs_of_rows(zero, given, step, to, to_step)
            else:
                _fill(room, given, step, inner - k, rows - i)
                _turn_pairs_of_rows(zero, room.ctypes.data, 32 * size, to, to_step)


@jit()
def pack_columns(start, stop, zero, x, target, pairs):
    """B's panels [start, stop) from x [K, N], whose rows are contiguous.

    Args:
        start, stop: range of panels.
        zero, x: as for pack_rows.
        target: address of the panels.
        pairs: pairs of a panel.
    """
    source, step, inner, columns = x
    size = bytes_of(zero)
    room = np.full((32, 32), zero)
    for first in range(start, stop, _TOGETHER):
        last = min(first + _TOGETHER, stop)
        for q in range(pairs):
            for j in range(COLUMNS * first, COLUMNS * last, 16):
                to = target + 4 * (COLUMNS * (j // COLUMNS * pairs + q) + j % COLUMNS)
                given = source + 2 * q * step + size * j
                if 2 * q + 2 <= inner and j + 16 <= columns:
                    _copy_pairs_of_rows(zero, given, step, to)
                else:
                    _fill(room, given, step, inner - 2 * q, columns - j)
                    _copy_pairs_of_rows(zero, room.ctypes.data, 32 * size, to)


@jit()
def pack_turned_columns(start, stop, zero, x, target, pairs):
    """B's panels [start, stop) from x [N, K], the transpose, whose rows are contiguous."""
    source, step, columns, inner = x
    size = bytes_of(zero)
    room = np.full((32, 32), zero)
    for panel in range(start, stop):
        for j in range(COLUMNS * panel, COLUMNS * panel + 32, 16):
            for q in range(0, pairs, 16):
                to = target + 4 * (COLUMNS * (panel * pairs + q) + j % COLUMNS)
                given = source + j * step + 2 * size * q
                if 2 * q + 32 <= inner and j + 16 <= columns:
                    _turn_pairs_of_row(zero, given, step, to, 4 * COLUMNS)
                else:
                    _fill(room, given, step, columns - j, inner - 2 * q)
                    _turn_pairs_of_row(zero, room.ctypes.data, 32 * size, to, 4 * COLUMNS)
