"""Blocks of float32 products whose sums stay in registers, for loops of compiled code.

A block reads its operands where they lie: rows of the second one, or of its transpose.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_prefetch import ask_for_line
from cerebras_tf.kernels.instruction_set import features

# Vectors as long as the processor's: AVX-512 has 32 registers of 16 numbers, AVX2 16 of 8.
HAS_LONG_VECTORS = "avx512f" in features()
# Rows of a block, numbers of a vector, the most vectors of a block's row, and rows of a transposed
# operand: so many that the sums, a row of the second operand and a number of the first are all
# held in registers.
ROWS = 4
LANES, MOST_VECTORS, TURNED = (16, 6, 4) if HAS_LONG_VECTORS else (8, 3, 2)

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


def _pointer(builder, address, rows, step, offset, type):
    """To what lies some rows of `step` bytes and an offset behind an address."""
    moved = builder.add(builder.add(address, builder.mul(_I64(rows), step)), offset)
    return builder.inttoptr(moved, type.as_pointer())


def _load(builder, *place):
    return builder.load(_pointer(builder, *place), align=4)


def _sums(builder: Any, columns: int) -> list[list[Any]]:
    return [
        [cgutils.alloca_once_value(builder, _ZERO) for _ in range(columns)] for _ in range(ROWS)
    ]


def _add_product(builder, total, x, y):
    """total += x y, in one rounding where the processor can."""
    type = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, type, f"llvm.fmuladd.v{LANES}f32")
    builder.store(builder.call(function, [x, y, builder.load(total)]), total)


def block_of_columns(vectors: int) -> Any:
    """An intrinsic: out [ROWS, LANES vectors] = a [ROWS, K] b [K, LANES vectors], by addresses.

    It takes (a, b, out, steps, K); `steps` are the bytes between rows of a, b and out, and between
    neighbours in a row of a.
    """

    def block(typingctx, a, b, out, steps, inner):
        def generate(context, builder, signature, args):
            a, b, out, steps, inner = args
            a_step, b_step, out_step, next_a = (builder.extract_value(steps, i) for i in range(4))
            totals = _sums(builder, vectors)
            offsets = [_I64(4 * LANES * j) for j in range(vectors)]
            order = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
            undefined = ir.Constant(_VECTOR, ir.Undefined)
            with cgutils.for_range(builder, inner) as loop:
                row = builder.add(b, builder.mul(loop.index, b_step))
                read = [_load(builder, row, 0, b_step, offset, _VECTOR) for offset in offsets]
                at = builder.mul(loop.index, next_a)
                for i, found in enumerate(totals):
                    number = _load(builder, a, i, a_step, at, _FLOAT)
                    first = builder.insert_element(undefined, number, _I32(0))
                    x = builder.shuffle_vector(first, undefined, order)
                    for total, y in zip(found, read):
                        _add_product(builder, total, x, y)
            for i, found in enumerate(totals):
                for total, offset in zip(found, offsets):
                    target = _pointer(builder, out, i, out_step, offset, _VECTOR)
                    builder.store(builder.load(total), target, align=4)
            return context.get_dummy_value()

        return _signature(), generate

    return intrinsic(block)


def block_of_rows(looks_ahead: bool) -> Any:
    """An intrinsic: out [ROWS, TURNED] = a [ROWS, K] times the transpose of b [TURNED, K].

    It takes what the other one takes; rows of a are contiguous, and K is taken down to a multiple
    of LANES.

    Args:
        looks_ahead: whether the rows of b that come next are asked of memory meanwhile.
    """

    def block(typingctx, a, b, out, steps, inner):
        def generate(context, builder, signature, args):
            a, b, out, steps, inner = args
            a_step, b_step, out_step = (builder.extract_value(steps, i) for i in range(3))
            totals = _sums(builder, TURNED)
            byte = ir.IntType(8)
            with cgutils.for_range(builder, builder.udiv(inner, _I64(LANES))) as loop:
                at = builder.mul(loop.index, _I64(4 * LANES))
                for j in range(TURNED, 2 * TURNED if looks_ahead else TURNED):
                    ask_for_line(builder, _pointer(builder, b, j, b_step, at, byte), 0, 3)
                read = [_load(builder, b, j, b_step, at, _VECTOR) for j in range(TURNED)]
                for i, found in enumerate(totals):
                    x = _load(builder, a, i, a_step, at, _VECTOR)
                    for total, y in zip(found, read):
                        _add_product(builder, total, x, y)
            add_up = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR]),
                f"llvm.vector.reduce.fadd.v{LANES}f32",
            )
            for i, found in enumerate(totals):
                for j, total in enumerate(found):
                    given = [ir.Constant(_FLOAT, -0.0), builder.load(total)]
                    number = builder.call(add_up, given, fastmath=("reassoc",))
                    target = _pointer(builder, out, i, out_step, _I64(4 * j), _FLOAT)
                    builder.store(number, target)
            return context.get_dummy_value()

        return _signature(), generate

    return intrinsic(block)


def _signature() -> Any:
    steps = types.containers.UniTuple(types.int64, 4)
    return types.void(types.int64, types.int64, types.int64, steps, types.int64)
