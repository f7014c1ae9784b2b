"""Products of bfloat16 numbers with sums in float32, by the processor's own instructions.

Letters: M, K, N sizes of a product; A [M, K], B [K, N]. A rests in slabs of `SLAB` inner indices,
each with rows of `PITCH` bytes; B in panels of 32 columns, of pairs of its rows: made by
compiled_operands.py. One inner loop a kind of instruction: `vdpbf16ps` of AVX512-BF16 keeps 12 rows
x 32 columns of sums in registers, AMX 32 x 32 in four tiles. A sum runs over K in order, whatever
the blocks and threads are: results do not depend on either.

Whether the processor has the instructions, instructions.py says; calling them elsewhere kills the
process.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_jit import inlined, jit

# Inner indices of a slab of A: longer ones add to results in memory less often, shorter ones leave
# more of B's panel in L1. On a Zen 4, 256, 384, 512 and 768 reach 188, 197, 192 and 204 GFLOP/s a
# core for 1024 rows, 768 columns and 768 or 3072 inner indices.
SLAB = 768
# Bytes of a row of a slab: a line more than the numbers, or rows would share few sets of L1.
PITCH = 2 * SLAB + 64
COLUMNS = 32
# Rows of sums that the inner loops keep: AVX512-BF16 24 of 32 registers, AMX four of eight tiles.
VECTOR_ROWS, TILE_ROWS = 12, 32
# Bytes of A that shall stay in L2 while the panels of B pass.
_L2_BYTES = 512 << 10
# Slabs after which the sums of all rows go to memory: rows of B would leave L2 before the next use.
SLABS = 4

_I8, _I32, _I64, _VOID = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.VoidType()
_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), 16), ir.VectorType(_I32, 16)


class _Bfloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


_PAIRS = ir.VectorType(_Bfloat(), 32)


def _vector_at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _every_lane(builder: Any, address: Any) -> Any:
    """The pair at an address, in every lane of a vector."""
    pair = builder.load(_vector_at(builder, address, _I32), align=4)
    undefined = ir.Constant(_WORDS, ir.Undefined)
    first = builder.insert_element(undefined, pair, _I32(0))
    return builder.bitcast(
        builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * 16)), _PAIRS
    )


def _sum_products(builder: Any, sums: list[Any], a: Any, b: Any, position: Any) -> list[Any]:
    """Adds the products of pair `position` of 12 rows and 32 columns to their sums."""
    signature = ir.FunctionType(_FLOATS, [_FLOATS, _PAIRS, _PAIRS])
    dot = cgutils.get_or_insert_function(
        builder.module, signature, "llvm.x86.avx512bf16.dpbf16ps.512"
    )
    row = builder.add(a, builder.mul(position, _I64(4)))
    column = builder.add(b, builder.mul(position, _I64(4 * COLUMNS)))
    halves = []
    for half in range(2):
        at = builder.add(column, _I64(64 * half))
        words = builder.load(_vector_at(builder, at, _WORDS), align=64)
        halves.append(builder.bitcast(words, _PAIRS))
    made = []
    for i in range(VECTOR_ROWS):
        pair = _every_lane(builder, builder.add(row, _I64(PITCH * i)))
        made += [builder.call(dot, [sums[2 * i + half], pair, halves[half]]) for half in range(2)]
    return made


@intrinsic
def _vector_block(typingctx: Any, a: Any, b: Any, c: Any, c_step: Any, pairs: Any, add: Any) -> Any:
    """C [12, 32] = A B, or += where `add`, over `pairs` > 0 pairs; addresses and bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, c, c_step, pairs, add = args

        def place(index: int) -> Any:
            row = builder.add(c, builder.mul(c_step, _I64(index // 2)))
            return _vector_at(builder, builder.add(row, _I64(64 * (index % 2))), _FLOATS)

        indices = range(2 * VECTOR_ROWS)
        start = builder.block
        load, loop, end = (builder.append_basic_block(name) for name in ("load", "loop", "end"))
        builder.cbranch(builder.icmp_signed("!=", add, _I64(0)), load, loop)
        builder.position_at_end(load)
        loaded = [builder.load(place(i), align=4) for i in indices]
        builder.branch(loop)
        builder.position_at_end(loop)
        position = builder.phi(_I64)
        sums = [builder.phi(_FLOATS) for _ in indices]
        made = _sum_products(builder, sums, a, b, position)
        after = builder.add(position, _I64(1))
        for block, values in ((start, [ir.Constant(_FLOATS, None)] * len(sums)), (load, loaded)):
            position.add_incoming(_I64(0), block)
            for total, value in zip(sums, values):
                total.add_incoming(value, block)
        position.add_incoming(after, loop)
        for total, value in zip(sums, made):
            total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", after, pairs), loop, end)
        builder.position_at_end(end)
        for i, value in zip(indices, made):
            builder.store(value, place(i), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


def _tile_instruction(name: str, tiles: tuple[int, ...], operands: int) -> Any:
    """An AMX instruction: constant numbers of tiles, then an address, and a step of rows."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = [builder.inttoptr(args[0], _I8.as_pointer())] if operands else []
        given = [*address, *args[1:operands]]
        kinds = [_I8] * len(tiles) + [value.type for value in given]
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VOID, kinds), f"llvm.x86.{name}"
        )
        builder.call(function, [_I8(tile) for tile in tiles] + given)
        return context.get_dummy_value()

    def without(typingctx: Any) -> Any:
        return types.void(), emit

    def at(typingctx: Any, address: Any) -> Any:
        return types.void(types.int64), emit

    def rows_at(typingctx: Any, address: Any, step: Any) -> Any:
        return types.void(types.int64, types.int64), emit

    return intrinsic((without, at, rows_at)[operands])


# Tiles 0 to 3 are sums, 4 and 5 rows of A, 6 and 7 columns of B.
_configure = _tile_instruction("ldtilecfg", (), 1)
_release = _tile_instruction("tilerelease", (), 0)
_zero0, _zero1, _zero2, _zero3 = (_tile_instruction("tilezero", (t,), 0) for t in range(4))
_load0, _load1, _load2, _load3, _load4, _load5, _load6, _load7 = (
    _tile_instruction("tileloadd64", (t,), 2) for t in range(8)
)
_store0, _store1, _store2, _store3 = (_tile_instruction("tilestored64", (t,), 2) for t in range(4))
_dot0, _dot1, _dot2, _dot3 = (
    _tile_instruction("tdpbf16ps", (t, 4 + t // 2, 6 + t % 2), 0) for t in range(4)
)


@inlined
def _tile_block(a: Any, b: Any, c: Any, c_step: Any, pairs: Any, add: Any) -> None:
    """C [32, 32] = A B, or += where `add`, over `pairs` pairs, a multiple of 16."""
    lower = c + 16 * c_step
    if add:
        _load0(c, c_step)
        _load1(c + 64, c_step)
        _load2(lower, c_step)
        _load3(lower + 64, c_step)
    else:
        _zero0()
        _zero1()
        _zero2()
        _zero3()
    for q in range(0, pairs, 16):
        _load4(a + 4 * q, PITCH)
        _load6(b + 4 * COLUMNS * q, 4 * COLUMNS)
        _dot0()
        _load7(b + 4 * COLUMNS * q + 64, 4 * COLUMNS)
        _dot1()
        _load5(a + 16 * PITCH + 4 * q, PITCH)
        _dot2()
        _dot3()
    _store0(c, c_step)
    _store1(c + 64, c_step)
    _store2(lower, c_step)
    _store3(lower + 64, c_step)


@intrinsic
def _copy_rows(
    typingctx: Any, target: Any, to_step: Any, source: Any, from_step: Any, rows: Any, size: Any
) -> Any:
    """Copies `rows` rows of `size` bytes; addresses and bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, to_step, source, from_step, rows, size = args
        with cgutils.for_range(builder, rows) as loop:
            to = builder.add(target, builder.mul(loop.index, to_step))
            given = builder.add(source, builder.mul(loop.index, from_step))
            cgutils.raw_memcpy(
                builder,
                builder.inttoptr(to, _I8.as_pointer()),
                builder.inttoptr(given, _I8.as_pointer()),
                size,
                1,
            )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


@inlined
def _blocks(block: Any, height: Any, bounds: Any, a: Any, b: Any, c: Any, room: Any) -> None:
    """Runs `block` over all of a part of the product; arguments as `vector_product` has them."""
    (first, last, left, right), (inner, add) = bounds
    a_at, a_rows = a
    c_at, c_step = c
    for outer in range(0, inner, SLABS * SLAB):
        until = min(inner, outer + SLABS * SLAB)
        many = max(4 * height, _L2_BYTES // (2 * (until - outer)) // height * height)
        for top in range(first, last, many):
            for j in range(left, right, COLUMNS):
                wide = min(COLUMNS, right - j)
                for k in range(outer, until, SLAB):
                    pairs = (min(until, k + SLAB) - k) // 2
                    panel = b + 4 * COLUMNS * (j // COLUMNS * (inner // 2) + k // 2)
                    slab = a_at + k // SLAB * a_rows * PITCH
                    more = 1 if add or k else 0
                    for i in range(top, min(last, top + many), height):
                        high = min(height, last - i)
                        at = c_at + i * c_step + 4 * j
                        if high == height and wide == COLUMNS:
                            block(slab + i * PITCH, panel, at, c_step, pairs, more)
                            continue
                        if more:
                            _copy_rows(room, 4 * COLUMNS, at, c_step, high, 4 * wide)
                        block(slab + i * PITCH, panel, room, 4 * COLUMNS, pairs, more)
                        _copy_rows(at, c_step, room, 4 * COLUMNS, high, 4 * wide)


@jit()
def vector_product(bounds: Any, a: Any, b: Any, c: Any, room: Any) -> None:
    """A part of C = A B, or C += A B, by AVX512-BF16.

    Args:
        bounds: ((first row, last, first column, last), (inner indices, whether to add)); rows and
            columns start at multiples of VECTOR_ROWS and COLUMNS; inner indices a multiple of 32,
            those that do not exist being zeros in A and B.
        a: (address, rows of a slab).
        b: address, aligned to 64 bytes.
        c: (address, bytes from row to row), float32.
        room: address of float32 [32, 32], aligned to 64 bytes.
    """
    _blocks(_vector_block, VECTOR_ROWS, bounds, a, b, c, room)


@jit()
def tile_product(bounds: Any, a: Any, b: Any, c: Any, room: Any, shapes: Any) -> None:
    """The same by AMX, rows in steps of TILE_ROWS.

    Args:
        bounds, a, b, c, room: as vector_product has them.
        shapes: address of the 64 bytes that say the shapes of the tiles, aligned to 64.
    """
    _configure(shapes)
    _blocks(_tile_block, TILE_ROWS, bounds, a, b, c, room)
    _release()
