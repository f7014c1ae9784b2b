"""Products of bfloat16 numbers with sums in float32, by the processor's own instructions.

Letters: M, K, N sizes of a product; A [M, K], B [K, N]. B rests in panels of 32 columns, of pairs
of its rows; A, for AVX512-BF16, in slabs of `SLAB` inner indices, each with rows of `PITCH` bytes,
and for AMX in panels of 32 rows, of pieces of 32 inner indices: made by compiled_operands.py. One
inner loop a kind of instruction: `vdpbf16ps` of AVX512-BF16 keeps 12 rows x 32 columns of sums in
registers, AMX 32 x 32 in four tiles. A sum runs over K in order, whatever the blocks and threads
are: results do not depend on either.

Whether the processor has the instructions, instructions.py says; calling them elsewhere kills the
process.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable

from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_prefetch import prefetch

# Inner indices of a slab of A: longer ones add to results in memory less often, shorter ones leave
# more of B's panel in L1. On a Zen 4, 256, 384, 512 and 768 reach 188, 197, 192 and 204 GFLOP/s a
# core for 1024 rows, 768 columns and 768 or 3072 inner indices.
SLAB = 768
# Bytes of a row of a slab: a line more than the numbers, or rows would share few sets of L1.
PITCH = 2 * SLAB + 64
COLUMNS = 32
# Rows of sums that the inner loops keep: AVX512-BF16 24 of 32 registers, AMX four of eight tiles.
VECTOR_ROWS, TILE_ROWS = 12, 32
# Inner indices for which AMX takes a panel of A or B from L2 once for a whole block of the other:
# 24 KB stay in L1 beside what streams past. On a Xeon with AMX 512 x 768 numbers times 768 x 768
# reach 1,550 GFLOP/s a core with 384, 1,460 with 256 and 1,160 with all at once.
CHUNK = 384
# Bytes of A that shall stay in L2 while the panels of B pass.
_L2_BYTES = 512 << 10
# Slabs after which the sums of all rows go to memory: rows of B would leave L2 before the next use.
SLABS = 4

_I8, _I32, _I64, _VOID = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.VoidType()
FLOATS, _WORDS = ir.VectorType(ir.FloatType(), 16), ir.VectorType(_I32, 16)


class _Bfloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


PAIRS = ir.VectorType(_Bfloat(), 32)


def _vector_at(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def _every_lane(builder, address):
    """The pair at an address, in every lane of a vector."""
    pair = builder.load(_vector_at(builder, address, _I32), align=4)
    undefined = ir.Constant(_WORDS, ir.Undefined)
    first = builder.insert_element(undefined, pair, _I32(0))
    return builder.bitcast(
        builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * 16)), PAIRS
    )


def _sum_products(builder: Any, sums: list[Any], a: Any, b: Any, position: Any) -> list[Any]:
    """Adds the products of pair `position` of 12 rows and 32 columns to their sums."""
    signature = ir.FunctionType(FLOATS, [FLOATS, PAIRS, PAIRS])
    dot = cgutils.get_or_insert_function(
        builder.module, signature, "llvm.x86.avx512bf16.dpbf16ps.512"
    )
    row = builder.add(a, builder.mul(position, _I64(4)))
    column = builder.add(b, builder.mul(position, _I64(4 * COLUMNS)))
    halves = []
    for half in range(2):
        at = builder.add(column, _I64(64 * half))
        words = builder.load(_vector_at(builder, at, _WORDS), align=64)
        halves.append(builder.bitcast(words, PAIRS))
    made = []
    for i in range(VECTOR_ROWS):
        pair = _every_lane(builder, builder.add(row, _I64(PITCH * i)))
        made += [builder.call(dot, [sums[2 * i + half], pair, halves[half]]) for half in range(2)]
    return made


@intrinsic
def _vector_block(typingctx, a, b, c, c_step, pairs, add):
    """C [12, 32] = A B, or += where `add`, over `pairs` > 0 pairs; addresses and bytes."""

    def generate(context, builder, signature, args):
        a, b, c, c_step, pairs, add = args

        def place(index: int) -> Any:
            row = builder.add(c, builder.mul(c_step, _I64(index // 2)))
            return _vector_at(builder, builder.add(row, _I64(64 * (index % 2))), FLOATS)

        indices = range(2 * VECTOR_ROWS)
        start = builder.block
        load, loop, end = (builder.append_basic_block(name) for name in ("load", "loop", "end"))
        builder.cbranch(builder.icmp_signed("!=", add, _I64(0)), load, loop)
        builder.position_at_end(load)
        loaded = [builder.load(place(i), align=4) for i in indices]
        builder.branch(loop)
        builder.position_at_end(loop)
        position = builder.phi(_I64)
        sums = [builder.phi(FLOATS) for _ in indices]
        made = _sum_products(builder, sums, a, b, position)
        after = builder.add(position, _I64(1))
        for block, values in ((start, [ir.Constant(FLOATS, None)] * len(sums)), (load, loaded)):
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

    def emit(context, builder, signature, args):
        address = [builder.inttoptr(args[0], _I8.as_pointer())] if operands else []
        given = [*address, *args[1:operands]]
        kinds = [_I8] * len(tiles) + [value.type for value in given]
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VOID, kinds), f"llvm.x86.{name}"
        )
        builder.call(function, [_I8(tile) for tile in tiles] + given)
        return context.get_dummy_value()

    def without(typingctx):
        return types.void(), emit

    def at(typingctx, address):
        return types.void(types.int64), emit

    def rows_at(typingctx, address, step):
        return types.void(types.int64, types.int64), emit

    return intrinsic((without, at, rows_at)[operands])


_fetch_to_write, _fetch_into_l2 = prefetch(1, 3), prefetch(0, 2)

# Tiles 0 to 3 are sums, 4 and 5 rows of A, 6 and 7 columns of B.
_configure = _tile_instruction("ldtilecfg", (), 1)
_release = _tile_instruction("tilerelease", (), 0)
_zero0, _zero1, _zero2, _zero3 = (_tile_instruction("tilezero", (t,), 0) for t in range(4))
_load0, _load1, _load2, _load3, _load4, _load5, _load6, _load7 = (
    _tile_instruction("tileloadd64", (t,), 2) for t in range(8)
)
# The same with a hint that the lines are not soon read again: they push less out of L1.
_stream4, _stream5, _stream6, _stream7 = (
    _tile_instruction("tileloaddt164", (t,), 2) for t in range(4, 8)
)
_store0, _store1, _store2, _store3 = (_tile_instruction("tilestored64", (t,), 2) for t in range(4))
_dot0, _dot1, _dot2, _dot3 = (
    _tile_instruction("tdpbf16ps", (t, 4 + t // 2, 6 + t % 2), 0) for t in range(4)
)


@inlined
def _tile_sums(a, b, inner, a_stays, out, ahead):
    """Adds the products of 32 rows, 32 columns and `inner` inner indices to tiles 0 to 3.

    Args:
        a, b: addresses of panels.
        inner: how many inner indices.
        a_stays: whether `a` streams from L2, `b` resting in L1; else the other way round.
        out: (address, bytes from row to row) of where the next block's sums are stored, which is
            asked for where A stays: along a row of C the processor does so by itself.
        ahead: (address of what passes next, lines of it to ask for with each 32 inner indices).
    """
    out_at, out_step = out
    next_at, lines = ahead
    for k in range(0, inner, 32):
        for line in range(lines):
            _fetch_into_l2(next_at + 2 * k * lines + 64 * line)
        if a_stays:
            for line in range(k // 4, min(k // 4 + 8, 64)):
                _fetch_to_write(out_at + line // 2 * out_step + 64 * (line % 2))
            _stream4(a + 64 * k, 64)
            _load6(b + 64 * k, 4 * COLUMNS)
            _dot0()
            _load7(b + 64 * k + 64, 4 * COLUMNS)
            _dot1()
            _stream5(a + 64 * k + 1024, 64)
        else:
            _load4(a + 64 * k, 64)
            _stream6(b + 64 * k, 4 * COLUMNS)
            _dot0()
            _stream7(b + 64 * k + 64, 4 * COLUMNS)
            _dot1()
            _load5(a + 64 * k + 1024, 64)
        _dot2()
        _dot3()


@inlined
def _load_sums(at, step):
    _load0(at, step)
    _load1(at + 64, step)
    _load2(at + 16 * step, step)
    _load3(at + 16 * step + 64, step)


@inlined
def _clear_sums() -> None:
    _zero0()
    _zero1()
    _zero2()
    _zero3()


@inlined
def _store_sums(at, step):
    _store0(at, step)
    _store1(at + 64, step)
    _store2(at + 16 * step, step)
    _store3(at + 16 * step + 64, step)


@intrinsic
def _copy_rows(typingctx, target, to_step, source, from_step, rows, size):
    """Copies `rows` rows of `size` bytes; addresses and bytes."""

    def generate(context, builder, signature, args):
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


@jit()
def vector_product(bounds, a, b, c, room):
    """C = A B, or C += A B, by AVX512-BF16.

    Args:
        bounds: (rows, columns, inner indices, whether to add); inner indices are a multiple of 32,
            those that do not exist being zeros in A and B.
        a: (address, rows of a slab).
        b: address, aligned to 64 bytes.
        c: (address, bytes from row to row), float32.
        room: address of float32 [32, 32], aligned to 64 bytes.
    """
    rows, columns, inner, add = bounds
    a_at, a_rows = a
    c_at, c_step = c
    height = VECTOR_ROWS
    for outer in range(0, inner, SLABS * SLAB):
        until = min(inner, outer + SLABS * SLAB)
        many = max(4 * height, _L2_BYTES // (2 * (until - outer)) // height * height)
        for top in range(0, rows, many):
            for j in range(0, columns, COLUMNS):
                wide = min(COLUMNS, columns - j)
                for k in range(outer, until, SLAB):
                    pairs = (min(until, k + SLAB) - k) // 2
                    panel = b + 4 * COLUMNS * (j // COLUMNS * (inner // 2) + k // 2)
                    slab = a_at + k // SLAB * a_rows * PITCH
                    more = 1 if add or k else 0
                    for i in range(top, min(rows, top + many), height):
                        high = min(height, rows - i)
                        at = c_at + i * c_step + 4 * j
                        if high == height and wide == COLUMNS:
                            _vector_block(slab + i * PITCH, panel, at, c_step, pairs, more)
                            continue
                        if more:
                            _copy_rows(room, 4 * COLUMNS, at, c_step, high, 4 * wide)
                        _vector_block(slab + i * PITCH, panel, room, 4 * COLUMNS, pairs, more)
                        _copy_rows(at, c_step, room, 4 * COLUMNS, high, 4 * wide)


@register_jitable
def chunk_size(inner: int) -> int:
    """Inner indices of a chunk of AMX's, at most CHUNK and evenly, a multiple of 32.

    Args:
        inner: how many there are in all, a multiple of 32.
    """
    number = max(1, -(-inner // CHUNK))
    return -(-inner // (32 * number)) * 32


@jit()
def tile_product(bounds, a, b, c, room, shapes):
    """C = A B, or C += A B, by AMX.

    Of one operand all panels shall fit into L2; each panel of the other passes by them once.

    Args:
        bounds: (rows, columns, inner indices, whether to add); inner indices are a multiple of 32,
            those that do not exist being zeros in A and B.
        a, b: addresses of panels, aligned to 64 bytes.
        c: (address, bytes from row to row), float32.
        room: (address of float32 [32, 32] for each panel that stays, or for one where there is one
            chunk, aligned to 64 bytes; inner indices of a chunk; whether A's panels stay).
        shapes: address of the 64 bytes that say the shapes of the tiles, aligned to 64.
    """
    rows, columns, inner, add = bounds
    c_at, c_step = c
    room_at, step, a_stays = room
    _configure(shapes)
    passing, staying = (columns, rows) if a_stays else (rows, columns)
    # The next chunk of what passes comes nearer while this one is used, and so does the place of
    # the next block of sums: in stores that miss L1, one waits for the other.
    lines = -(-32 // -(-staying // 32))
    for p in range(0, passing, 32):
        for k in range(0, inner, step):
            until = min(inner, k + step)
            for s in range(0, staying, 32):
                i, j = (s, p) if a_stays else (p, s)
                high, wide = min(32, rows - i), min(32, columns - j)
                at = c_at + i * c_step + 4 * j
                sums = room_at if step >= inner else room_at + 128 * s
                whole = high == 32 and wide == 32
                if k > 0:
                    _load_sums(sums, 128)
                elif not add:
                    _clear_sums()
                elif whole:
                    _load_sums(at, c_step)
                else:
                    _copy_rows(sums, 128, at, c_step, high, 4 * wide)
                    _load_sums(sums, 128)
                left, right = a + 64 * (i // 32 * inner + k), b + 64 * (j // 32 * inner + k)
                passes = right if a_stays else left
                ahead = (passes + 64 * (until - k) + s // 32 * lines * 2 * (until - k), lines)
                below = (at + 32 * c_step, c_step) if until == inner else (sums + 4096, 128)
                _tile_sums(left, right, until - k, a_stays, below, ahead)
                if until < inner or not whole:
                    _store_sums(sums, 128)
                    if until == inner:
                        _copy_rows(at, c_step, sums, 128, high, 4 * wide)
                else:
                    _store_sums(at, c_step)
    _release()
