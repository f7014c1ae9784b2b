"""Products of float32 matrices by AVX-512: A [M, K] times B [K, N].

What BLAS spends on copying both operands shows where an inner dimension is short, and activations
come from memory. Here a block of B is laid out in panels of 32 columns that stay in L2, and A is
read as it lies; where its columns are contiguous, in panels of 12 rows, and where its rows would
meet in L1, from a copy of them. 12 rows x 32 columns of sums stay in registers. On a Xeon with AMX,
whose fused multiply-adds alone reach 200 GFLOP/s a core and OpenBLAS 145 to 150, the inner loop
reaches 180.

Every element's sum runs over chunks of K in order: it depends on neither blocks nor threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_operand_packing import number_at, turned
from cerebras_tf.kernels.compiled_prefetch import ask_for_line, prefetch
from cerebras_tf.kernels.scratch import rounded

F = np.float32

# Of a tile of sums: 24 of 32 registers, the others hold two vectors of B and a number of A.
ROWS, COLUMNS = 12, 32
# Inner indices that one sum takes before it is added to the result: a tile of A, 18 KB, stays in L1
# while panels of B pass by.
_CHUNK = 384
# Bytes of the block of B, which stays in L2 while rows of A pass by. On the Xeon, with 2 MB, the
# speed differs by 1 % between half and one and a half of it.
_BLOCK_BYTES = 768 << 10
# Inner indices of a turn of the inner loop: 3 % faster than one.
_UNROLLED = 4
# Panels that are made side by side from rows, or each row would give but two lines.
_TOGETHER = 8
_SIDE = 16  # of the blocks that are turned in registers
_LINE = 64
# Rows this many bytes apart, or a multiple, have their lines in one set of L1 (64 sets on Intel's
# and AMD's), which holds 8 or 12 of them: fewer than a tile reads side by side.
_SET_BYTES = 4096
_TILE_BYTES = 4 * ROWS * COLUMNS
# Bytes of the room that a thread needs: a block of B, a tile of A, a tile of sums.
ROOM_BYTES = _BLOCK_BYTES + 4 * ROWS * _CHUNK + _TILE_BYTES + 4 * _LINE
STEP_BYTES = rounded(ROOM_BYTES)  # from one thread's room to the next

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOAT = ir.FloatType()
_VECTOR, _WORDS = ir.VectorType(_FLOAT, 16), ir.VectorType(_I32, 16)
_HALVES = (0, 1)  # the vectors of a row of a tile


def _pointer(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


_fetch_line = prefetch(0, 2)


def _every_lane(builder, address):
    """The number at an address, in every lane of a vector."""
    number = builder.load(_pointer(builder, address, _FLOAT), align=4)
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, _I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * 16))


def _sum_products(builder: Any, sums: list[Any], rows: list[Any], row_of_b: Any) -> list[Any]:
    """Adds the products of one inner index, at the addresses of its numbers, to the sums."""
    signature = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    multiply_add = cgutils.get_or_insert_function(builder.module, signature, "llvm.fma.v16f32")
    vectors = []
    for half in _HALVES:
        at = builder.add(row_of_b, _I64(_LINE * half))
        vectors.append(builder.load(_pointer(builder, at, _VECTOR), align=_LINE))
    made = []
    for i, row in enumerate(rows):
        number = _every_lane(builder, row)
        for half in _HALVES:
            made.append(builder.call(multiply_add, [number, vectors[half], sums[2 * i + half]]))
    return made


def _loop(builder: Any, sums: list[Any], inner: Any, step: int, rows_at: Any, b: Any) -> list[Any]:
    """Sums after as many inner indices as whole steps of `step` have, then one by one the rest.

    Args:
        rows_at: makes the addresses of an inner index's numbers of A.
        b: address of the panel.
    """
    before = builder.block
    turn, test, rest, test_rest, end = (
        builder.append_basic_block(name) for name in ("turn", "test", "rest", "test_rest", "end")
    )
    whole = builder.sub(inner, builder.urem(inner, _I64(step)))
    builder.branch(test)
    positions, found = [], []
    for kind, previous in ((test, before), (test_rest, test)):
        builder.position_at_end(kind)
        positions.append(builder.phi(_I64))
        found.append([builder.phi(_VECTOR) for _ in sums])
        start, values = (_I64(0), sums) if kind is test else (positions[0], found[0])
        positions[-1].add_incoming(start, previous)
        for total, value in zip(found[-1], values):
            total.add_incoming(value, previous)
    for kind, body, until, after, many, place in (
        (test, turn, whole, test_rest, step, 0),
        (test_rest, rest, inner, end, 1, 1),
    ):
        builder.position_at_end(kind)
        builder.cbranch(builder.icmp_signed("<", positions[place], until), body, after)
        builder.position_at_end(body)
        made = found[place]
        for i in range(many):
            k = builder.add(positions[place], _I64(i))
            row_of_b = builder.add(b, builder.mul(k, _I64(4 * COLUMNS)))
            made = _sum_products(builder, made, rows_at(k), row_of_b)
        positions[place].add_incoming(builder.add(positions[place], _I64(many)), body)
        for total, value in zip(found[place], made):
            total.add_incoming(value, body)
        builder.branch(kind)
    builder.position_at_end(end)
    return found[1]


def _tile(direct: bool) -> Any:
    """An intrinsic: a tile of C [ROWS, COLUMNS] = or += A B, by addresses and bytes.

    Args:
        direct: whether rows of A are contiguous, `a_step` bytes apart; else a panel [K, ROWS].
    """

    def tile(typingctx, a, a_step, b, c, c_step, inner, add):
        def generate(context, builder, signature, args):
            a, a_step, b, c, c_step, inner, add = args
            places = []
            for i in range(ROWS):
                row = builder.add(c, builder.mul(c_step, _I64(i)))
                places += [builder.add(row, _I64(_LINE * half)) for half in _HALVES]
            for place in places:
                ask_for_line(builder, _pointer(builder, place, _I8), 1, 3)
            # Three rows from each of four addresses: the processor adds one or two steps itself.
            firsts = [builder.add(a, builder.mul(a_step, _I64(i))) for i in range(0, ROWS, 3)]
            steps = [_I64(0), a_step, builder.mul(a_step, _I64(2))]

            def rows_at(k: Any) -> list[Any]:
                if direct:
                    column = builder.mul(k, _I64(4))
                    return [
                        builder.add(builder.add(firsts[i // 3], column), steps[i % 3])
                        for i in range(ROWS)
                    ]
                column = builder.add(a, builder.mul(k, _I64(4 * ROWS)))
                return [builder.add(column, _I64(4 * i)) for i in range(ROWS)]

            zeros = [ir.Constant(_VECTOR, None)] * len(places)
            sums = _loop(builder, zeros, inner, _UNROLLED, rows_at, b)
            targets = [_pointer(builder, place, _VECTOR) for place in places]
            with builder.if_else(builder.icmp_signed("!=", add, _I64(0))) as (more, once):
                with more:
                    for target, total in zip(targets, sums):
                        builder.store(builder.fadd(builder.load(target, align=4), total), target, 4)
                with once:
                    for target, total in zip(targets, sums):
                        builder.store(total, target, 4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return intrinsic(tile)


_tile_of_rows, _tile_of_panel = _tile(True), _tile(False)


@intrinsic
def _put(typingctx, address, number):
    def generate(context, builder, signature, args):
        builder.store(args[1], _pointer(builder, args[0], _FLOAT), 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@intrinsic
def _copy_vector(typingctx, source, target):
    """Copies 16 numbers; addresses."""

    def generate(context, builder, signature, args):
        source, target = (_pointer(builder, address, _VECTOR) for address in args)
        builder.store(builder.load(source, align=4), target, 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _turn_block(typingctx, source, step, target, to_step):
    """Writes 16 x 16 numbers as their transpose; addresses and bytes from row to row."""

    def generate(context, builder, signature, args):
        source, step, target, to_step = args
        rows = []
        for i in range(_SIDE):
            at = builder.add(source, builder.mul(step, _I64(i)))
            rows.append(builder.load(_pointer(builder, at, _WORDS), align=4))
        for i, row in enumerate(turned(builder, rows)):
            at = builder.add(target, builder.mul(to_step, _I64(i)))
            builder.store(row, _pointer(builder, at, _WORDS), 4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@inlined
def _even(size, most, unit):
    """Size of the parts, as few as there can be, evenly; `most` is a multiple of `unit`."""
    parts = max(1, -(-size // most))
    return -(-size // (parts * unit)) * unit


@jit()
def _lay_out_block(sizes, b, room):
    """Panels [N / COLUMNS, K, COLUMNS] of a block of B, with zeros beyond its columns.

    Args:
        sizes: (inner indices, columns) of the block.
        b: (address, bytes from one inner index to the next, bytes from column to column).
        room: address of the panels.
    """
    inner, columns = sizes
    at, inner_step, column_step = b
    whole_columns, whole_inner = columns // _SIDE * _SIDE, 0
    if column_step == 4:
        whole_inner = inner
        for first in range(0, whole_columns, _TOGETHER * COLUMNS):
            last = min(whole_columns, first + _TOGETHER * COLUMNS)
            for k in range(inner):
                for j in range(first, last, _SIDE):
                    target = room + 4 * ((j // COLUMNS * inner + k) * COLUMNS + j % COLUMNS)
                    _copy_vector(at + k * inner_step + 4 * j, target)
    else:
        whole_inner = inner // _SIDE * _SIDE
        for j in range(0, whole_columns, _SIDE):
            for k in range(0, whole_inner, _SIDE):
                target = room + 4 * ((j // COLUMNS * inner + k) * COLUMNS + j % COLUMNS)
                _turn_block(at + 4 * k + j * column_step, column_step, target, 4 * COLUMNS)
    for j in range(-(-columns // COLUMNS) * COLUMNS):
        for k in range(whole_inner if j < whole_columns else 0, inner):
            number = number_at(F(0), at + k * inner_step + j * column_step) if j < columns else F(0)
            _put(room + 4 * ((j // COLUMNS * inner + k) * COLUMNS + j % COLUMNS), number)


@jit()
def _lay_out_rows(rows, enough, inner, a, room):
    """A panel [K, ROWS] of rows of A, with zeros below them.

    Args:
        rows: how many there are, at most ROWS.
        enough: whether 16 may be read.
        inner: how many inner indices.
        a: (address, bytes from row to row, bytes from one inner index to the next).
        room: address of the panel; of four more numbers, too.
    """
    at, row_step, inner_step = a
    if enough and row_step == 4:
        for k in range(inner):
            _copy_vector(at + k * inner_step, room + 4 * ROWS * k)
        return
    for k in range(inner):
        for i in range(ROWS):
            number = number_at(F(0), at + i * row_step + k * inner_step) if i < rows else F(0)
            _put(room + 4 * (ROWS * k + i), number)


@jit()
def _copy_rows(inner, a, row_step, room):
    """ROWS rows of A behind each other; addresses, and bytes from row to row."""
    whole = inner // _SIDE * _SIDE
    for i in range(ROWS):
        source, target = a + i * row_step, room + 4 * inner * i
        for k in range(0, whole, _SIDE):
            _copy_vector(source + 4 * k, target + 4 * k)
        for k in range(whole, inner):
            _put(target + 4 * k, number_at(F(0), source + 4 * k))


@jit()
def _move_tile(rows, columns, c, c_step, sums, add):
    """C = or += the part of a tile of sums that exists; addresses and bytes."""
    for i in range(rows):
        for j in range(columns):
            at, total = c + i * c_step + 4 * j, number_at(F(0), sums + 4 * (COLUMNS * i + j))
            _put(at, number_at(F(0), at) + total if add else total)


@jit()
def _times_block(bounds, a, block, c, room):
    """C = A B, or +=, for a block of B that is laid out.

    Args:
        bounds: (rows, columns, inner indices, whether to add).
        a: (address, bytes from row to row, bytes from one inner index to the next).
        block: address of the panels.
        c: (address, bytes from row to row).
        room: address of a tile of A and a tile of sums.
    """
    rows, columns, inner, add = bounds
    a_at, row_step, inner_step = a
    c_at, c_step = c
    sums, panels = room + 4 * ROWS * _CHUNK + _LINE, -(-columns // COLUMNS)
    for i in range(0, rows, ROWS):
        high, tile = min(ROWS, rows - i), a_at + i * row_step
        direct, first, step = inner_step == 4 and high == ROWS, tile, row_step
        if not direct:
            _lay_out_rows(high, i + 16 <= rows, inner, (tile, row_step, inner_step), room)
        elif row_step % _SET_BYTES == 0 and panels > 1:
            _copy_rows(inner, tile, row_step, room)
            first, step = room, 4 * inner
        for p in range(panels):
            if direct:  # of the rows that come next, each panel's share
                for below in range(ROWS * p // panels, ROWS * (p + 1) // panels):
                    if i + ROWS + below < rows:
                        line = tile + (ROWS + below) * row_step
                        for k in range(0, 4 * inner, _LINE):
                            _fetch_line(line + k)
            wide = min(COLUMNS, columns - COLUMNS * p)
            panel = block + 4 * COLUMNS * inner * p
            at = c_at + i * c_step + 4 * COLUMNS * p
            whole = high == ROWS and wide == COLUMNS
            to, to_step, more = (at, c_step, add) if whole else (sums, 4 * COLUMNS, 0)
            if direct:
                _tile_of_rows(first, step, panel, to, to_step, inner, more)
            else:
                _tile_of_panel(room, 0, panel, to, to_step, inner, more)
            if not whole:
                _move_tile(high, wide, at, c_step, sums, add)


@jit()
def multiply(bounds, a, b, c, room):
    """C [M, N] = A [M, K] B [K, N], or C += A B, of float32 numbers on this thread.

    Args:
        bounds: (M, N, K, whether to add); none is 0.
        a: (address, bytes from row to row, bytes from column to column); one of these is 4.
        b: the same.
        c: (address, bytes from row to row); rows are contiguous.
        room: address of ROOM_BYTES, aligned to 64 bytes.
    """
    rows, columns, inner, add = bounds
    a_at, a_row, a_inner = a
    b_at, b_inner, b_column = b
    c_at, c_step = c
    chunk = _even(inner, _CHUNK, _SIDE)
    width = _even(columns, _BLOCK_BYTES // (4 * COLUMNS * chunk) * COLUMNS, COLUMNS)
    for j in range(0, columns, width):
        wide = min(width, columns - j)
        for k in range(0, inner, chunk):
            deep = min(chunk, inner - k)
            place = (b_at + j * b_column + k * b_inner, b_inner, b_column)
            _lay_out_block((deep, wide), place, room)
            _times_block(
                (rows, wide, deep, 1 if add or k else 0),
                (a_at + k * a_inner, a_row, a_inner),
                room,
                (c_at + 4 * j, c_step),
                room + _BLOCK_BYTES + _LINE,
            )


@jit()
def multiply_range(start, stop, thread, by_rows, bounds, a, b, c, rooms):
    """`multiply` for rows, or columns, from start to stop of C.

    Args:
        start: first row, or column.
        stop: the one behind the last.
        thread: number of the thread.
        by_rows: whether they are rows.
        bounds, a, b, c: of the whole product; see `multiply`.
        rooms: address of a room for every thread, STEP_BYTES apart.
    """
    rows, columns, inner, add = bounds
    room, count = rooms + thread * STEP_BYTES, stop - start
    if by_rows:
        a, c = (a[0] + start * a[1], a[1], a[2]), (c[0] + start * c[1], c[1])
        multiply((count, columns, inner, add), a, b, c, room)
    else:
        b, c = (b[0] + start * b[2], b[1], b[2]), (c[0] + 4 * start, c[1])
        multiply((rows, count, inner, add), a, b, c, room)


@jit()
def multiply_inner(start, stop, thread, parts, bounds, a, b, c, sums, rooms):
    """Sums of the inner indices of parts from start to stop: the first into C, others beside it.

    Args:
        start: first part.
        stop: the one behind the last.
        thread: number of the thread.
        parts: how many there are.
        bounds, a, b, c: of the whole product; see `multiply`.
        sums: address of [parts - 1, M, N] numbers.
        rooms: as for `multiply_range`.
    """
    rows, columns, inner, add = bounds
    for part in range(start, stop):
        first, last = inner * part // parts, inner * (part + 1) // parts
        target = c if part == 0 else (sums + 4 * (part - 1) * rows * columns, 4 * columns)
        multiply(
            (rows, columns, last - first, add if part == 0 else 0),
            (a[0] + first * a[2], a[1], a[2]),
            (b[0] + first * b[1], b[1], b[2]),
            target,
            rooms + thread * STEP_BYTES,
        )
