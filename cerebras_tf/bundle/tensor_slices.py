"""Slices of variables in the index of a TensorFlow checkpoint: their keys and their messages.

A partitioned variable stands there once as a whole without content, which lists its slices, and
once for every slice, under a key that sorts as names and numbers do. Formats:
tensorflow/core/util/saved_tensor_slice_util, tensorflow/core/lib/strings/ordered_code, and
tensorflow/core/framework/tensor_slice.proto.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSlice:
    """A block of a variable.

    Attributes:
        name: of the whole variable.
        shape: of the whole variable.
        start: first index of the block along every axis.
        size: of the block along every axis.
    """

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def key(self) -> bytes:
        """Its key in the index."""
        extents = (part for extent in zip(self.start, self.size) for part in extent)
        parts = [_number(0), _text(self.name), _number(len(self.start)), *map(_signed, extents)]
        return b"".join(parts)


def _number(value: int) -> bytes:
    """A number from zero, in order: how many bytes it has, then these, the highest first."""
    length = -(-value.bit_length() // 8)
    return bytes([length]) + value.to_bytes(length, "big")


def _text(value: str) -> bytes:
    """A text, in order: its bytes, zero escaped (as is 0xff, never in UTF-8), and an end."""
    return value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x01"


def _signed(value: int) -> bytes:
    """Any number, in order: as many ones in front as bytes, which hold seven bits each."""
    length = (value if value >= 0 else ~value).bit_length() // 7 + 1
    ones = ((1 << length) - 1) << 7 * length
    return ((value & ((1 << 8 * length) - 1)) ^ ones).to_bytes(length, "big")
