"""GEMM micro-kernels for bfloat16 operands with float32 sums: AVX512-BF16 and AMX.

Letters: A [M, K], B [K, N]; a pair is two adjacent elements along K, one 32-bit word. Operands are
packed by compiled_operand_packing.py: B into panels of NR = 32 columns of pairs; A into slabs of
SLAB inner indices with rows of PITCH bytes (AVX512-BF16), or into panels of 32 rows x 32 inner
indices (AMX). `vdpbf16ps` keeps 12 x 32 sums in registers; AMX keeps 32 x 32 in four tiles (Intel
Architecture Instruction Set Extensions, chapter Intel AMX). Every sum runs over K in order: results
depend neither on blocks nor on threads.

instruction_set.py checks whether the processor has the instructions; without them they kill the
process.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable

from cerebras_tf.kernels.compiled_intrinsics import emits, prefetch
from cerebras_tf.kernels.compiled_jit import inlined, jit

# Longer slabs add to results in memory less often; shorter ones leave more of B's panel in L1. On a
# Zen 4, 256, 384, 512 and 768 reach 188, 197, 192 and 204 GFLOP/s a core for M = 1024, N = 768 and
# K = 768 or 3072.
SLAB = 768
# Bytes between rows of a slab: a cache line more than the elements, or rows would share few sets of
# L1.
PITCH = 2 * SLAB + 64
NR = 32
# Rows of a micro-tile: AVX512-BF16 uses 24 of 32 registers for sums, AMX four of eight tiles.
VECTOR_ROWS, TILE_ROWS = 12, 32
# K block of AMX: a panel of 24 KB stays in L1 while the other operand streams from L2. On a Xeon
# with AMX [512, 768] times [768, 768] reaches 1,550 GFLOP/s a core with 384, 1,460 with 256 and
# 1,160 with the whole of K.
AMX_KC = 384
# Bytes of A that stay in L2 while the panels of B pass.
_L2_BYTES = 512 << 10
# Slabs after which all sums go to memory: with more, rows of B would leave L2 before their next
# use.
SLABS_PER_PASS = 4

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


def _pointer(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def _broadcast_pair(builder, address):
    """The pair at an address, in every lane of a vector."""
    pair = builder.load(_pointer(builder, address, _I32), align=4)
    undefined = ir.Constant(_WORDS, ir.Undefined)
    first = builder.insert_element(undefined, pair, _I32(0))
    return builder.bitcast(
        builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * 16)), PAIRS
    )


def _dot_update(builder: Any, sums: list[Any], a: Any, b: Any, position: Any) -> list[Any]:
    """Adds the products of pair `position` to the sums of 12 rows and 32 columns."""
    signature = ir.FunctionType(FLOATS, [FLOATS, PAIRS, PAIRS])
    dot = cgutils.get_or_insert_function(
        builder.module, signature, "llvm.x86.avx512bf16.dpbf16ps.512"
    )
    row = builder.add(a, builder.mul(position, _I64(4)))
    column = builder.add(b, builder.mul(position, _I64(4 * NR)))
    halves = []
    for half in range(2):
        at = builder.add(column, _I64(64 * half))
        words = builder.load(_pointer(builder, at, _WORDS), align=64)
        halves.append(builder.bitcast(words, PAIRS))
    updated = []
    for i in range(VECTOR_ROWS):
        pair = _broadcast_pair(builder, builder.add(row, _I64(PITCH * i)))
        updated += [
            builder.call(dot, [sums[2 * i + half], pair, halves[half]]) for half in range(2)
        ]
    return updated


@emits(types.void, *[types.int64] * 6)
def vector_kernel(builder, a, b, c, c_step, pairs, add):
    """C [12, 32] = A B, or += if `add`, over `pairs` > 0 pairs; addresses and bytes."""

    def place(index: int) -> Any:
        row = builder.add(c, builder.mul(c_step, _I64(index // 2)))
        return _pointer(builder, builder.add(row, _I64(64 * (index % 2))), FLOATS)

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
    updated = _dot_update(builder, sums, a, b, position)
    after = builder.add(position, _I64(1))
    for block, values in ((start, [ir.Constant(FLOATS, None)] * len(sums)), (load, loaded)):
        position.add_incoming(_I64(0), block)
        for total, value in zip(sums, values):
            total.add_incoming(value, block)
    position.add_incoming(after, loop)
    for total, value in zip(sums, updated):
        total.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", after, pairs), loop, end)
    builder.position_at_end(end)
    for i, value in zip(indices, updated):
        builder.store(value, place(i), align=4)


def _amx_instruction(name: str, tiles: tuple[int, ...], operands: int) -> Any:
    """An intrinsic of an AMX instruction on fixed tiles; `operands`: 0, 1 (address) or 2 (and row
    step)."""

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


_prefetch_for_write, _prefetch_l2 = prefetch(1, 3), prefetch(0, 2)

# Tiles 0 to 3 hold sums, 4 and 5 rows of A, 6 and 7 columns of B.
configure_tiles = _amx_instruction("ldtilecfg", (), 1)
release_tiles = _amx_instruction("tilerelease", (), 0)
_zero0, _zero1, _zero2, _zero3 = (_amx_instruction("tilezero", (t,), 0) for t in range(4))
_load0, _load1, _load2, _load3, _load4, _load5, _load6, _load7 = (
    _amx_instruction("tileloadd64", (t,), 2) for t in range(8)
)
# Loads with a non-temporal hint, which evict less of L1.
_stream4, _stream5, _stream6, _stream7 = (
    _amx_instruction("tileloaddt164", (t,), 2) for t in range(4, 8)
)
_store0, _store1, _store2, _store3 = (_amx_instruction("tilestored64", (t,), 2) for t in range(4))
_dot0, _dot1, _dot2, _dot3 = (
    _amx_instruction("tdpbf16ps", (t, 4 + t // 2, 6 + t % 2), 0) for t in range(4)
)


@inlined
def _amx_kernel(a, b, inner, a_resident, out, prefetched):
    """Adds the products of 32 rows, 32 columns and `inner` inner indices to tiles 0 to 3.

    Args:
        a, b: addresses of panels.
        a_resident: whether `a` streams from L2 and `b` is in L1; else the other way round.
        out: (address, bytes between rows) of the next block's sums, prefetched if `a_resident`;
            along a row of C the processor prefetches by itself.
        prefetched: (address of the next streamed panel, lines of it to prefetch per 32 inner
            indices).
    """
    out_at, out_step = out
    next_at, lines = prefetched
    for k in range(0, inner, 32):
        for line in range(lines):
            _prefetch_l2(next_at + 2 * k * lines + 64 * line)
        if a_resident:
            for line in range(k // 4, min(k // 4 + 8, 64)):
                _prefetch_for_write(out_at + line // 2 * out_step + 64 * (line % 2))
            _stream4(a + 64 * k, 64)
            _load6(b + 64 * k, 4 * NR)
            _dot0()
            _load7(b + 64 * k + 64, 4 * NR)
            _dot1()
            _stream5(a + 64 * k + 1024, 64)
        else:
            _load4(a + 64 * k, 64)
            _stream6(b + 64 * k, 4 * NR)
            _dot0()
            _stream7(b + 64 * k + 64, 4 * NR)
            _dot1()
            _load5(a + 64 * k + 1024, 64)
        _dot2()
        _dot3()


@inlined
def add_tile_products(a, b, inner):
    """As `_amx_kernel`, of operands that are in the caches: plain loads, nothing prefetched."""
    for k in range(0, inner, 32):
        _load4(a + 64 * k, 64)
        _load6(b + 64 * k, 4 * NR)
        _dot0()
        _load7(b + 64 * k + 64, 4 * NR)
        _dot1()
        _load5(a + 64 * k + 1024, 64)
        _dot2()
        _dot3()


@inlined
def load_tiles(at, step):
    """Loads tiles 0 to 3 from sums [32, 32] at an address, `step` bytes between rows."""
    _load0(at, step)
    _load1(at + 64, step)
    _load2(at + 16 * step, step)
    _load3(at + 16 * step + 64, step)


@inlined
def zero_tiles() -> None:
    """Sets tiles 0 to 3 to 0."""
    _zero0()
    _zero1()
    _zero2()
    _zero3()


@inlined
def store_tiles(at, step):
    """The inverse of load_tiles."""
    _store0(at, step)
    _store1(at + 64, step)
    _store2(at + 16 * step, step)
    _store3(at + 16 * step + 64, step)


@emits(types.void, *[types.int64] * 6)
def copy_rows(builder, target, to_step, source, from_step, rows, size):
    """Copies `rows` rows of `size` bytes."""
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


@jit()
def vector_gemm(bounds, a, b, c, workspace):
    """C = A B, or C += A B, by AVX512-BF16.

    Args:
        bounds: (M, N, K, whether to add); K is a multiple of 32, padded with zeros in A and B.
        a: (address, rows of a slab).
        b: address, aligned to 64 bytes.
        c: (address, bytes between rows), float32.
        workspace: address of float32 [32, 32], aligned to 64 bytes.
    """
    rows, columns, inner, add = bounds
    a_at, a_rows = a
    c_at, c_step = c
    height = VECTOR_ROWS
    for outer in range(0, inner, SLABS_PER_PASS * SLAB):
        until = min(inner, outer + SLABS_PER_PASS * SLAB)
        many = max(4 * height, _L2_BYTES // (2 * (until - outer)) // height * height)
        for top in range(0, rows, many):
            for j in range(0, columns, NR):
                n_size = min(NR, columns - j)
                for k in range(outer, until, SLAB):
                    pairs = (min(until, k + SLAB) - k) // 2
                    panel = b + 4 * NR * (j // NR * (inner // 2) + k // 2)
                    slab = a_at + k // SLAB * a_rows * PITCH
                    more = 1 if add or k else 0
                    for i in range(top, min(rows, top + many), height):
                        m_size = min(height, rows - i)
                        at = c_at + i * c_step + 4 * j
                        if m_size == height and n_size == NR:
                            vector_kernel(slab + i * PITCH, panel, at, c_step, pairs, more)
                            continue
                        if more:
                            copy_rows(workspace, 4 * NR, at, c_step, m_size, 4 * n_size)
                        vector_kernel(slab + i * PITCH, panel, workspace, 4 * NR, pairs, more)
                        copy_rows(at, c_step, workspace, 4 * NR, m_size, 4 * n_size)


@register_jitable
def amx_kc(inner: int) -> int:
    """K block of AMX: at most AMX_KC, a multiple of 32, splitting `inner`, a multiple of 32,
    evenly."""
    number = max(1, -(-inner // AMX_KC))
    return -(-inner // (32 * number)) * 32


@jit()
def amx_gemm(bounds, a, b, c, workspace, config):
    """C = A B, or C += A B, by AMX.

    All panels of the resident operand should fit into L2; panels of the other stream past them
    once.

    Args:
        bounds: (M, N, K, whether to add); K is a multiple of 32, padded with zeros in A and B.
        a, b: addresses of panels, aligned to 64 bytes.
        c: (address, bytes between rows), float32.
        workspace: (address of float32 [32, 32] per resident panel, or of one if K is one block,
            aligned to 64 bytes; K block; whether A is resident).
        config: address of the 64-byte tile configuration, aligned to 64 bytes.
    """
    rows, columns, inner, add = bounds
    c_at, c_step = c
    workspace_at, step, a_resident = workspace
    configure_tiles(config)
    streamed, resident = (columns, rows) if a_resident else (rows, columns)
    # The next block of the streamed operand is prefetched, and so are the next sums: stores that
    # miss L1 wait for each other.
    lines = -(-32 // -(-resident // 32))
    for p in range(0, streamed, 32):
        for k in range(0, inner, step):
            until = min(inner, k + step)
            for s in range(0, resident, 32):
                i, j = (s, p) if a_resident else (p, s)
                m_size, n_size = min(32, rows - i), min(32, columns - j)
                at = c_at + i * c_step + 4 * j
                sums = workspace_at if step >= inner else workspace_at + 128 * s
                whole = m_size == 32 and n_size == 32
                if k > 0:
                    load_tiles(sums, 128)
                elif not add:
                    zero_tiles()
                elif whole:
                    load_tiles(at, c_step)
                else:
                    copy_rows(sums, 128, at, c_step, m_size, 4 * n_size)
                    load_tiles(sums, 128)
                left, right = a + 64 * (i // 32 * inner + k), b + 64 * (j // 32 * inner + k)
                next_panel = right if a_resident else left
                prefetched = (
                    next_panel + 64 * (until - k) + s // 32 * lines * 2 * (until - k),
                    lines,
                )
                below = (at + 32 * c_step, c_step) if until == inner else (sums + 4096, 128)
                _amx_kernel(left, right, until - k, a_resident, below, prefetched)
                if until < inner or not whole:
                    store_tiles(sums, 128)
                    if until == inner:
                        copy_rows(at, c_step, sums, 128, m_size, 4 * n_size)
                else:
                    store_tiles(at, c_step)
    release_tiles()
