"""Packs operands of bfloat16 GEMM as the micro-kernels read them
(compiled_bfloat16_microkernels.py).

Letters: A [M, K], B [K, N]. Two adjacent elements along K become a 32-bit word, the first in the
lower half. float32 is rounded to nearest even, with subnormal numbers flushed to zero, as the
instructions do (numbers within 2^-135 below 2^-126 round up to it when stored as bfloat16); uint16
are bits of bfloat16. A becomes slabs [K / SLAB, M, PITCH bytes] or panels [M / 32, K / 32, 32, 16]
of words, B panels [N / 32, K / 2, 32] of words, padded with zeros. Blocks of 16 x 16 words are
transposed in registers where the layout needs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_bfloat16_microkernels import FLOATS, NR, PAIRS, PITCH, SLAB
from cerebras_tf.kernels.compiled_jit import inlined, jit

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I32, 16)
_HALVES, _ALL_HALVES = (ir.VectorType(ir.IntType(16), size) for size in (16, 32))
# Interleaves two vectors: 0, 16, 1, 17, ...
_INTERLEAVED = ir.Constant(ir.VectorType(_I32, 32), [i // 2 + 16 * (i % 2) for i in range(32)])
_LANES = 16
# Panels packed at once from row-major B: one alone reads two cache lines of each row, which took
# 1.0 ns a number on a Xeon for rows of 25,000 columns, and eight 0.3.
_PANELS_AT_ONCE = 8


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def _rounded(builder, low, high):
    """16-bit [32] of two float32 [16], rounded to nearest even by AVX512-BF16; subnormals are 0."""
    signature = ir.FunctionType(PAIRS, [FLOATS, FLOATS])
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    round_both = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.bitcast(builder.call(round_both, [high, low]), _ALL_HALVES)


def _pair_of_rows(builder: Any, is_half: bool, address: Any, step: Any) -> Any:
    """16 words from 16 columns of two rows."""
    below = builder.add(address, step)
    if is_half:
        low, high = (_load(builder, at, _HALVES) for at in (address, below))
        both = builder.shuffle_vector(low, high, _INTERLEAVED)
    else:
        low, high = (_load(builder, at, FLOATS) for at in (address, below))
        both = _rounded(builder, low, high)
        both = builder.shuffle_vector(both, both, _INTERLEAVED)
    return builder.bitcast(both, _WORDS)


def _pairs_of_row(builder: Any, is_half: bool, address: Any, step: Any) -> Any:
    """16 words from 32 adjacent elements of a row."""
    if is_half:
        return _load(builder, address, _WORDS)
    low, high = (_load(builder, builder.add(address, _I64(at)), FLOATS) for at in (0, 64))
    return builder.bitcast(_rounded(builder, low, high), _WORDS)


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The transpose of 16 vectors of 16 words: interleaving the halves of the list four times."""
    masks = [
        ir.Constant(_WORDS, [n // 2 + start + 16 * (n % 2) for n in range(16)]) for start in (0, 8)
    ]
    for _ in range(4):
        rows = [
            builder.shuffle_vector(rows[i], rows[i + 8], mask) for i in range(8) for mask in masks
        ]
    return rows


# Intrinsics take a zero, float32 or uint16, as an example of a matrix's elements.


def _transpose(words: Any, rows: int) -> Any:
    """An intrinsic (example, source, step, target, step) that transposes 16 x 16 words.

    Args:
        words: emits the 16 words of a row.
        rows: rows of the source per row of words.
    """

    def transpose(typing, example, source, step, target, to_step):
        def generate(context, builder, signature, args):
            _, source, step, target, to_step = args
            made = []
            for i in range(_LANES):
                at = builder.add(source, builder.mul(step, _I64(rows * i)))
                made.append(words(builder, example == types.uint16, at, step))
            for i, row in enumerate(transposed(builder, made)):
                at = builder.add(target, builder.mul(to_step, _I64(i)))
                builder.store(row, builder.inttoptr(at, _WORDS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(example, *[types.int64] * 4), generate

    return intrinsic(transpose)


def _words_of_row(builder: Any, is_half: bool, address: Any, step: Any) -> Any:
    """16 words as they are."""
    return _load(builder, address, _WORDS)


_transpose_rows, _transpose_row, transpose_words = (
    _transpose(_pair_of_rows, 2),
    _transpose(_pairs_of_row, 1),
    _transpose(_words_of_row, 1),
)


def _copy_of(words):
    """An intrinsic (example, source, step, target) that writes 16 words."""

    def copy(typing, example, source, step, target):
        def generate(context, builder, signature, args):
            _, source, step, target = args
            made = words(builder, example == types.uint16, source, step)
            builder.store(made, builder.inttoptr(target, _WORDS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(example, *[types.int64] * 3), generate

    return intrinsic(copy)


_interleave_rows, _convert_row = _copy_of(_pair_of_rows), _copy_of(_pairs_of_row)


@intrinsic
def element_bytes(typing, example):
    """Bytes of an element of the example's type."""

    def generate(context, builder, signature, args):
        return _I64(example.bitwidth // 8)

    return types.int64(example), generate


@intrinsic
def load_element(typing, example, address):
    """The element at an address."""

    def generate(context, builder, signature, args):
        kind = context.get_value_type(example)
        return builder.load(builder.inttoptr(args[1], kind.as_pointer()), align=2)

    return example(example, types.int64), generate


@intrinsic
def to_float(typing, element):
    """A float32, or the bits of a bfloat16, as float32."""

    def generate(context, builder, signature, args):
        if element == types.float32:
            return args[0]
        upper = builder.shl(builder.zext(args[0], _I32), _I32(16))
        return builder.bitcast(upper, ir.FloatType())

    return types.float32(element), generate


@jit()
def _pad_block(workspace, source, step, rows, columns):
    """workspace [32, 32] = the matrix at an address, padded with zeros."""
    zero = workspace.dtype.type(0)
    size = element_bytes(zero)
    for i in range(workspace.shape[0]):
        for j in range(workspace.shape[1]):
            inside = i < rows and j < columns
            workspace[i, j] = load_element(zero, source + i * step + size * j) if inside else zero


@inlined
def _place(i, k, layout):
    """Offset in bytes of row i of A and 32 inner indices from `k`, a multiple of 32."""
    height, inner = layout
    if inner:
        return 64 * (i // 32 * inner + k + i % 32)
    return (k // SLAB * height + i) * PITCH + 2 * (k % SLAB)


@jit()
def pack_rows(start, stop, zero, x, target, layout):
    """Packs A's rows [16 start, 16 stop) from row-major A [M, K].

    Args:
        zero: 0 of the elements' type, float32 or uint16.
        x: (address, bytes between rows, rows, columns) as stored.
        target: address of the slabs or panels.
        layout: (padded rows, 0) for slabs, (padded rows, padded inner indices) for panels.
    """
    source, step, rows, inner = x
    size = element_bytes(zero)
    workspace = np.full((32, 32), zero)
    for i in range(16 * start, min(16 * stop, layout[0])):
        for k in range(0, inner, 32):
            to = target + _place(i, k, layout)
            given = source + i * step + size * k
            if i < rows and k + 32 <= inner:
                _convert_row(zero, given, 0, to)
            else:
                _pad_block(workspace, given, step, min(1, rows - i), inner - k)
                _convert_row(zero, workspace.ctypes.data, 0, to)


@jit()
def pack_transposed_rows(start, stop, zero, x, target, layout):
    """Packs A's rows [16 start, 16 stop) from row-major A^T [K, M]."""
    source, step, inner, rows = x
    size = element_bytes(zero)
    workspace = np.full((32, 32), zero)
    to_step = 64 if layout[1] else PITCH
    for k in range(0, inner, 32):
        for i in range(16 * start, min(16 * stop, layout[0]), 16):
            to = target + _place(i, k, layout)
            given = source + k * step + size * i
            if i + 16 <= rows and k + 32 <= inner:
                _transpose_rows(zero, given, step, to, to_step)
            else:
                _pad_block(workspace, given, step, inner - k, rows - i)
                _transpose_rows(zero, workspace.ctypes.data, 32 * size, to, to_step)


@jit()
def pack_columns(start, stop, zero, x, target, pairs):
    """Packs B's panels [start, stop) from row-major B [K, N]; `pairs` of each panel, else as
    pack_rows."""
    source, step, inner, columns = x
    size = element_bytes(zero)
    workspace = np.full((32, 32), zero)
    for first in range(start, stop, _PANELS_AT_ONCE):
        last = min(first + _PANELS_AT_ONCE, stop)
        for q in range(pairs):
            for j in range(NR * first, NR * last, 16):
                to = target + 4 * (NR * (j // NR * pairs + q) + j % NR)
                given = source + 2 * q * step + size * j
                if 2 * q + 2 <= inner and j + 16 <= columns:
                    _interleave_rows(zero, given, step, to)
                else:
                    _pad_block(workspace, given, step, inner - 2 * q, columns - j)
                    _interleave_rows(zero, workspace.ctypes.data, 32 * size, to)


@jit()
def pack_transposed_columns(start, stop, zero, x, target, pairs):
    """Packs B's panels [start, stop) from row-major B^T [N, K]."""
    source, step, columns, inner = x
    size = element_bytes(zero)
    workspace = np.full((32, 32), zero)
    for panel in range(start, stop):
        for j in range(NR * panel, NR * panel + 32, 16):
            for q in range(0, pairs, 16):
                to = target + 4 * (NR * (panel * pairs + q) + j % NR)
                given = source + j * step + 2 * size * q
                if 2 * q + 32 <= inner and j + 16 <= columns:
                    _transpose_row(zero, given, step, to, 4 * NR)
                else:
                    _pad_block(workspace, given, step, columns - j, inner - 2 * q)
                    _transpose_row(zero, workspace.ctypes.data, 32 * size, to, 4 * NR)
