"""GEMM of several products at once, of operands rounded to bfloat16, on all threads.

Letters: A [M, K], B [K, N]. The products share A, or share B, or are summed. Every B is packed once
by all threads; then blocks of rows of every A are packed once, each by the thread that multiplies
it by every B of its products. Everything else is as in compiled_bfloat16.py, which multiplies one
by one where a group would be slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels import compiled_bfloat16 as single
from cerebras_tf.kernels import instruction_set as isa
from cerebras_tf.kernels.compiled_bfloat16 import pack_block
from cerebras_tf.kernels.compiled_bfloat16_microkernels import amx_gemm, amx_kc, vector_gemm
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_threads import parallel_chunks
from cerebras_tf.kernels.scratch import borrow

Product = tuple[np.ndarray, np.ndarray, np.ndarray]
Shape = tuple[int, int, int]


class _Plan(NamedTuple):
    """How a group is divided.

    Attributes:
        blocks: blocks of each product's A: the first one's number, and how many.
        parts: threads.
        block_bytes: of a packed block.
        sums_bytes: of a block's partial sums.
    """

    blocks: list[tuple[int, int]]
    parts: int
    block_bytes: int
    sums_bytes: int

    @classmethod
    def of(cls, shapes: Sequence[Shape], shares_right: bool) -> Optional[_Plan]:
        """By M, K, N of every product; None if products should run one by one."""
        kind = single.instructions().kind
        if kind == isa.NONE or not all(map(all, shapes)):
            return None
        inner, columns = max(k for _, k, _ in shapes), max(n for *_, n in shapes)
        rows = sum(m for m, *_ in shapes) if shares_right else shapes[0][0]
        if rows < columns or inner > single.longest_inner(columns):
            return None
        unit = single.ROW_UNITS[kind]
        heights = [-(-m // unit) for m, *_ in shapes]
        units = sum(heights) if shares_right else heights[0]
        parts = single.threads_for(kind, sum(m * k * n for m, k, n in shapes))
        number = single.count_blocks(units, single.slab_bytes(kind, unit, inner), parts)
        most, counts = -(-units // number), [-(-height * number // units) for height in heights]
        firsts = [sum(counts[:i]) if shares_right else 0 for i in range(len(counts))]
        split = kind == isa.AMX and any(amx_kc(-(-k // 32) * 32) < k for _, k, _ in shapes)
        sums = single.TILE_BYTES * (most if split else 1)
        block = single.slab_bytes(kind, most * unit, inner)
        return cls(list(zip(firsts, counts)), parts, block, sums)


def scratch_bytes(shapes: Sequence[Shape], shares_right: bool) -> int:
    """Bytes of scratch memory that `gemm_group` takes for products of M, K, N."""
    plan = _Plan.of(shapes, shares_right)
    if plan is None:
        return max(single.scratch_bytes(*shape) for shape in shapes)
    rights = [single.panel_bytes(k, n) for _, k, n in shapes[: 1 if shares_right else None]]
    return sum(rights) + plan.parts * (plan.block_bytes + plan.sums_bytes)


def gemm_group(products: Sequence[Product]) -> None:
    """out = a b of every product (a, b, out), as `compiled_bfloat16.gemm`.

    Products of one `out` are summed; otherwise they have one a or one b.
    """
    first, last = products[0], products[-1]
    shares_right = first[1] is last[1] and first[2] is not last[2]
    plan = _Plan.of([(len(a), len(b), b.shape[1]) for a, b, _ in products], shares_right)
    stored = [single.as_strided_rows(a) for a, *_ in products]  # copies live as long
    lefts = [single.Operand.of(a) for a in stored]
    uniform = len({(type(x.example), x.transposed) for x in lefts}) == 1
    if plan is None or not uniform or not all(single.is_row_major(c) for *_, c in products):
        for i, (a, b, out) in enumerate(products):
            single.gemm(a, b, out, add=i > 0 and out is first[2])
        return
    kind, count = single.instructions().kind, 1 if plan.parts == 1 else 2 * plan.parts
    rights = {id(b): single.as_strided_rows(b) for _, b, _ in products}
    bounds = np.cumsum([0, *(single.panel_bytes(*b.shape) for b in rights.values())]).tolist()
    step = plan.block_bytes + plan.sums_bytes
    with borrow((bounds[-1] + plan.parts * step,), np.uint8) as memory:
        packed = {
            key: single.pack_b(b, memory[start:], count)[0]
            for (key, b), start in zip(rights.items(), bounds)
        }
        table = np.array(
            [
                (*left.stored, packed[id(b)], b.shape[1], -(-b.shape[0] // 32) * 32)
                + (out.ctypes.data, out.strides[0], i > 0 and out is first[2], *blocks, id(a))
                for i, ((a, b, out), left, blocks) in enumerate(zip(products, lefts, plan.blocks))
            ],
            np.int64,
        )
        blocks = max(first + many for first, many in plan.blocks)
        parallel_chunks(
            _multiply_blocks,
            blocks,
            1 if plan.parts == 1 else blocks,
            (lefts[0].example, lefts[0].transposed),
            single.ROW_UNITS[kind],
            table,
            (memory.ctypes.data + bounds[-1], step, plan.block_bytes),
            single.TILE_CONFIG.ctypes.data if kind == isa.AMX else None,
            workspaces=plan.parts,
        )


@jit()
def _multiply_blocks(start, stop, thread, kind, unit, table, workspaces, config):
    """Blocks [start, stop) of a group.

    Args:
        kind: a zero of A's type, and whether A is stored transposed.
        unit: rows of A are padded to multiples of it.
        table: int64, a row for every product: A as stored (address, bytes between rows, rows,
            columns), address of packed B, N, K padded, address of C, bytes between its rows,
            whether to add, first block, number of blocks, and a number of A.
        workspaces: (address, bytes between threads, bytes of a packed block).
        config: address of AMX's tile configuration; None: by AVX512-BF16.
    """
    example, transposed = kind
    block = workspaces[0] + thread * workspaces[1]
    sums = block + workspaces[2]
    for index in range(start, stop):
        packed, height = np.int64(0), 0
        for row in table:
            first, many = row[10], row[11]
            if not first <= index < first + many:
                continue
            rows = row[3] if transposed else row[2]
            units, number = -(-rows // unit), index - first
            top = units * number // many * unit
            end = min(rows, units * (number + 1) // many * unit)
            if row[12] != packed:
                packed, stored = row[12], (row[0], row[1], row[2], row[3])
                operand, tiled = (example, transposed, stored), config is not None
                height = pack_block(True, top, end, operand, block, unit, tiled)[1]
            bounds, step = (end - top, row[5], row[6], row[9]), row[8]
            place = row[7] + top * step, step
            if config is None:
                vector_gemm(bounds, (block, height), row[4], place, sums)
            else:
                amx_gemm(bounds, block, row[4], place, (sums, amx_kc(row[6]), 1), config)
