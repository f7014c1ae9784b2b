"""Files in the safetensors format, written and read one tensor at a time.

The format: the size of the header (uint64), the header (JSON: dtype, shape and bytes of every
tensor), the tensors. https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cerebras_tf.errors import CheckpointError
from cerebras_tf.ir import Array, TensorType
from cerebras_tf.kernels.compiled_crc32c import crc32c

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_ALIGNMENT = 64


class Region(NamedTuple):
    """A tensor of a file: its type, and the offset of its first byte."""

    type: TensorType
    offset: int


def write_tensors(
    path: Path,
    types: Mapping[str, TensorType],
    reading: Callable[[str], contextlib.AbstractContextManager[Array]],
    metadata: Mapping[str, str],
) -> dict[str, int]:
    """Writes a file, and waits until it is on the disk.

    Args:
        types: the tensors, in the order of the file.
        reading: context manager that gives a tensor's array, in its storage dtype.
        metadata: texts for the header.

    Returns:
        The CRC-32C of every tensor's bytes, by name.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, type in types.items():
        span = [offset, offset + type.bytes]
        header[name] = {"dtype": _NAMES[type.dtype], "shape": type.shape, "data_offsets": span}
        offset = span[1]
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    checksums: dict[str, int] = {}
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in types:
            with reading(name) as array:
                content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                checksums[name] = crc32c(content)
                file.write(content.data)
        file.flush()
        os.fsync(file.fileno())
    return checksums


class TensorFile:
    """A safetensors file that is read tensor by tensor.

    Attributes:
        regions: the tensors, by name.
        metadata: the texts of the header.

    Raises:
        CheckpointError: it cannot be read, or is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                start = 8 + int.from_bytes(file.read(8), "little")
                if start > _size(path):
                    raise ValueError("its header is missing")
                header = json.loads(file.read(start - 8))
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            self.regions = {name: _region(entry, start) for name, entry in header.items()}
            ends = [region.offset + region.type.bytes for region in self.regions.values()]
            if max(ends, default=start) > _size(path):
                raise ValueError("its end is missing")
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path}: must be a complete safetensors file. Received: {error}. Restore the "
                "file, or use another checkpoint."
            ) from error

    def read(self, name: str) -> Array:
        """The array of a tensor, in its storage dtype."""
        type, offset = self.regions[name]
        with open(self.path, "rb") as file:
            file.seek(offset)
            count = math.prod(type.static_shape)
            return np.fromfile(file, type.storage_dtype, count).reshape(type.static_shape)

    def check(self, name: str, array: Array, checksum: int) -> None:
        """Raises CheckpointError if the bytes of a tensor have another checksum."""
        if crc32c(array) != checksum:
            raise CheckpointError(
                f"{self.path}: tensors must be as they were written. Received: damaged bytes of "
                f"{name}. Restore the file, or use another checkpoint."
            )


def _region(entry: Mapping[str, Any], start: int) -> Region:
    type = TensorType(_DTYPES[entry["dtype"]], tuple(entry["shape"]))
    first, last = entry["data_offsets"]
    if last - first != type.bytes:
        raise ValueError(f"{last - first} bytes of a tensor of {type.bytes}")
    return Region(type, start + first)


def _size(path: Path) -> int:
    return os.path.getsize(path)
