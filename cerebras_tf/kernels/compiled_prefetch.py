"""Asks memory for lines before they are needed."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_I8, _I32 = ir.IntType(8), ir.IntType(32)


def ask_for_line(builder: Any, place: Any, to_write: int, nearness: int) -> None:
    """Emits LLVM's prefetch.

    Args:
        builder: emits it.
        place: pointer to bytes of the line.
        to_write: 1 where it is to be written, else 0.
        nearness: 3 for L1, 2 for L2.
    """
    kinds = [_I8.as_pointer(), _I32, _I32, _I32]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
    )
    builder.call(function, [place, _I32(to_write), _I32(nearness), _I32(1)])


def prefetch(to_write: int, nearness: int) -> Any:
    """Makes an intrinsic (address) that asks for its line; see `ask_for_line`."""

    def fetch(typingctx, address):
        def generate(context, builder, signature, args):
            place = builder.inttoptr(args[0], _I8.as_pointer())
            ask_for_line(builder, place, to_write, nearness)
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return intrinsic(fetch)
