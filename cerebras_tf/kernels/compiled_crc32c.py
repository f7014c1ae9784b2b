"""CRC-32C (Castagnoli), the checksum of TensorFlow's checkpoints.

Polynomial 0x1EDC6F41, bits reflected, as in RFC 3720, section 12.1. SSE 4.2 has an instruction for
eight bytes; other processors use a table, byte by byte.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import types

from cerebras_tf.kernels.compiled_intrinsics import emits
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.instruction_set import features

_REFLECTED = 0x82F63B78
# TensorFlow's files hold checksums that are rotated and shifted by a constant, so that a checksum
# of data that contains checksums stays a good one (tensorflow/core/lib/hash/crc32c.h, Mask).
_MASK_DELTA = 0xA282EAD8
_FULL = 0xFFFFFFFF


def _table() -> np.ndarray:
    """uint32 [256]: the checksum's register after one byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_REFLECTED), table >> 1)
    return table.astype(np.uint32)


_TABLE = _table()


@emits(types.uint64, types.uint64, types.uint64)
def _step(builder, register, word):
    """The register after eight bytes, by the processor's instruction."""
    word64 = ir.IntType(64)
    kind = ir.FunctionType(word64, [word64, word64])
    function = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind)
    return builder.call(function, [register, word])


@jit()
def _by_words(register, words):
    state = np.uint64(register)
    for i in range(words.size):
        state = _step(state, words[i])
    return np.uint32(state)


@jit()
def _by_bytes(register, content, table):
    state = np.uint32(register)
    for i in range(content.size):
        state = table[np.uint8(state ^ content[i])] ^ (state >> np.uint32(8))
    return np.uint32(state)


_HAS_INSTRUCTION = "sse4.2" in features()


def crc32c(content: np.ndarray, before: int = 0) -> int:
    """Checksum of an array's bytes, 32 bits.

    Args:
        content: of any dtype, C-contiguous.
        before: checksum of the preceding bytes.
    """
    flat = content.reshape(-1).view(np.uint8)
    register = ~before & _FULL
    if _HAS_INSTRUCTION:
        whole = flat.size // 8 * 8
        if flat.ctypes.data % 8 == 0 and whole:
            register = int(_by_words(np.uint64(register), flat[:whole].view(np.uint64)))
            flat = flat[whole:]
    return ~int(_by_bytes(np.uint32(register), flat, _TABLE)) & _FULL


def mask_crc(checksum: int) -> int:
    """A checksum as TensorFlow's files hold it."""
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & _FULL


def unmask_crc(held: int) -> int:
    """The inverse of `mask_crc`."""
    rotated = (held - _MASK_DELTA) & _FULL
    return (rotated >> 17 | rotated << 15) & _FULL
