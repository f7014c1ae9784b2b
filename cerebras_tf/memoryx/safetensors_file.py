"""Files in the safetensors format, written and read one tensor at a time.

The format: the size of the header (uint64), the header (JSON: dtype, shape and bytes of every
tensor), the tensors, little-endian, row by row. https://huggingface.co/docs/safetensors

The library of that name is not used: its writer takes all tensors at once, and its reader does not
return places in the file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Optional, Union

import numpy as np

from cerebras_tf.errors import CheckpointError
from cerebras_tf.ir import Array, TensorType
from cerebras_tf.kernels.compiled_crc32c import crc32c
from cerebras_tf.kernels.half_precision import as_float32, from_float32, to_storage
from cerebras_tf.memoryx.store import FileRegion
from cerebras_tf.user_files import check_types, open_regular, parse_json, reason

# Types a weight may have.
WEIGHT_TYPES = ("float32", "float16", "bfloat16")
SHARD_BYTES = 5 * 10**9  # largest size of a file, as usual there
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
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
_MAX_HEADER_BYTES = 100_000_000  # the library's own limit
_ENTRY = {"dtype": str, "shape": [int], "data_offsets": [int]}


class TensorFile:
    """A safetensors file that is read tensor by tensor.

    Attributes:
        regions: the tensors, by name.
        others: types of tensors that are not read, by name.
        metadata: the texts of the header.

    Raises:
        CheckpointError: it cannot be read, or is no such file: as with the library, the tensors
            must cover all bytes after the header, each once.
    """

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        self.path = Path(path)
        self.others: dict[str, str] = {}
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                header, start = _read_header(file, size)
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            check_types(self.metadata, {str: str}, "__metadata__")
            _check_cover(header, size - start)
            found = {name: self._region(name, each, start) for name, each in header.items()}
            self.regions = {name: region for name, region in found.items() if region is not None}
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: must be a complete safetensors file. Received: {reason(error)}. "
                "Download, copy or restore it, or use another folder."
            ) from error

    def _region(self, name: str, entry: Mapping[str, Any], start: int) -> Optional[FileRegion]:
        (first, last), shape = entry["data_offsets"], tuple(entry["shape"])
        if entry["dtype"] not in _DTYPES:
            self.others[name] = entry["dtype"]
            return None
        type = TensorType(_DTYPES[entry["dtype"]], shape)
        if last - first != type.bytes or min(shape, default=0) < 0:
            raise ValueError(f"tensor {name} of {last - first} bytes instead of {type.bytes}")
        return FileRegion(type.dtype, shape, str(self.path), start + first, type.bytes, None)

    def read(self, name: str) -> Array:
        """The array of a tensor, in its storage dtype."""
        return self.regions[name].read()

    def read_weight(self, name: str) -> Array:
        """A tensor as float32; raises CheckpointError if it is of no type of WEIGHT_TYPES."""
        dtype = self.regions[name].dtype if name in self.regions else self.others[name]
        if dtype not in WEIGHT_TYPES:
            raise CheckpointError(
                f"{self.path}: tensor {name} must be {', '.join(WEIGHT_TYPES)}. Received: {dtype}. "
                "Save the model in one of them."
            )
        array = as_float32(self.read(name), dtype)
        require_numbers(array, f"{self.path}: tensor {name}")
        return array

    def check(self, name: str, array: Array, checksum: int) -> None:
        """Raises CheckpointError if the bytes of a tensor have another checksum."""
        if crc32c(array) != checksum:
            raise CheckpointError(
                f"{self.path}: tensors must be as they were written. Received: damaged bytes of "
                f"{name}. Restore the file, or use another checkpoint."
            )


def _read_header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The header, and the offset of the first tensor."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
        raise ValueError(f"{size} bytes, whose first 8 specify a header of {length} bytes")
    try:
        header = parse_json(file.read(length), {str: dict}, unique=True)
        for name, entry in header.items():
            if name != "__metadata__":
                check_types(entry, _ENTRY, name)
                if len(entry["data_offsets"]) != 2:
                    raise ValueError(f"data_offsets of {name} are no pair")
    except ValueError as error:
        raise ValueError(f"an invalid header ({error})") from error
    return header, 8 + length


def _check_cover(header: Mapping[str, Any], size: int) -> None:
    """Raises ValueError unless tensors cover `size` bytes, each once."""
    end = 0
    for (first, last), name in sorted(
        (each["data_offsets"], name) for name, each in header.items()
    ):
        if first != end or last < first:
            raise ValueError(f"tensor {name} at bytes {first} to {last}, where {end} must follow")
        end = last
        if end > size:
            raise ValueError(f"{size} bytes of tensors, where tensor {name} is not complete")
    if end < size:
        raise ValueError(f"{size - end} bytes after the last tensor")


def require_numbers(array: Array, where: str) -> None:
    """Raises CheckpointError if floating point weights hold NaN."""
    if array.size and np.isnan(np.min(array)):  # NaN is the smallest
        raise CheckpointError(
            f"{where} must hold numbers. Received: NaN. Use weights of a model that did not "
            "diverge, or download the file again."
        )


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


def write_weights(
    path: Path, types: Mapping[str, TensorType], tensors: Iterable[tuple[str, Array]]
) -> None:
    """Writes a file that transformers and peft read.

    Args:
        tensors: yields names and arrays in the order of `types`: numbers, which are rounded to the
            dtype, or its storage form.
    """
    left = iter(tensors)

    def reading(expected: str) -> contextlib.AbstractContextManager[Array]:
        name, array = next(left)
        type = types[name]
        assert name == expected and array.shape == type.shape, name
        with np.errstate(over="ignore"):  # numbers too large for float16 become infinite
            return contextlib.nullcontext(to_storage(array, type.dtype))

    write_tensors(path, types, reading, {"format": "pt"})  # what transformers asks for


def write_shards(
    folder: Path,
    types: Mapping[str, TensorType],
    tensors: Iterable[tuple[str, Array]],
    max_shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes the files of a model as transformers names them, with an index if there are several.

    Args:
        tensors: see write_weights.
        max_shard_bytes: largest size of a file's tensors; a larger tensor has a file of its own.
    """
    shards, left = split_into_shards(types, max_shard_bytes), iter(tensors)
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        name = name if len(shards) > 1 else SINGLE
        write_weights(folder / name, shard, left)
        weight_map.update(dict.fromkeys(shard, name))
    if len(shards) > 1:
        size = sum(type.bytes for type in types.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / INDEX).write_text(text, encoding="utf-8")


def split_into_shards(
    types: Mapping[str, TensorType], max_shard_bytes: int
) -> list[dict[str, TensorType]]:
    """Cuts the tensors, in their order, into files of at most `max_shard_bytes`; none is empty."""
    shards: list[dict[str, TensorType]] = [{}]
    size = 0
    for name, type in types.items():
        if shards[-1] and size + type.bytes > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = type
        size += type.bytes
    return shards


def rounded_to(array: Array, dtype: str) -> Array:
    """float32 values rounded to one of WEIGHT_TYPES, to even, as float32."""
    return as_float32(from_float32(array, dtype), dtype)
