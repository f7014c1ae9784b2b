"""The index of a TensorFlow checkpoint: which bytes of which data file every variable is.

A checkpoint is `PREFIX.index` and `PREFIX.data-00000-of-0000N`. Data files hold arrays as they are
in memory; the index is a sorted table whose values are protocol buffers. Formats:
tensorflow/core/util/tensor_bundle, tensorflow/core/protobuf/tensor_bundle.proto, and
protobuf.dev/programming-guides/encoding. TensorFlow is not needed here.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Optional, Union

from cerebras_tf.bundle.sorted_table import read_table, read_varint, write_table, write_varint
from cerebras_tf.errors import CheckpointError
from cerebras_tf.kernels.compiled_crc32c import mask_crc, unmask_crc
from cerebras_tf.memoryx.store import FileRegion
from cerebras_tf.user_files import open_regular
from cerebras_tf.whole_file import write_whole


@dataclass(frozen=True)
class TensorSlice:
    """A block of a variable.

    Attributes:
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
    """Order-preserving code of a number >= 0: its count of bytes, then the bytes, highest first."""
    length = -(-value.bit_length() // 8)
    return bytes([length]) + value.to_bytes(length, "big")


def _text(value: str) -> bytes:
    """Order-preserving code of a text: its bytes, with zero escaped, and an end mark."""
    return value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x01"


def _signed(value: int) -> bytes:
    """Order-preserving code of any number: as many leading ones as bytes of seven bits."""
    length = (value if value >= 0 else ~value).bit_length() // 7 + 1
    ones = ((1 << length) - 1) << 7 * length
    return ((value & ((1 << 8 * length) - 1)) ^ ones).to_bytes(length, "big")


_HEADER_KEY = b""
# enum DataType of tensorflow/core/framework/types.proto
_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
_NUMBERS = {name: number for number, name in _DTYPES.items()}
# Fields of BundleHeaderProto and BundleEntryProto.
_SHARDS, _ENDIANNESS, _VERSION, _PRODUCER = 1, 2, 3, 1
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CHECKSUM, _SLICES = 1, 2, 3, 4, 5, 6, 7
_DIM, _DIM_SIZE = 2, 1
# Fields of TensorSliceProto and its Extent.
_EXTENT, _START, _LENGTH = 1, 1, 2
# Wire types of protocol buffers.
_NUMBER, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_Field = Union[int, bytes]


@dataclass(frozen=True)
class Entry(FileRegion):
    """A variable in a checkpoint.

    Attributes:
        raw: the entry as it is in the index that it was read from.
    """

    raw: bytes = b""

    @property
    def is_whole(self) -> bool:
        """Whether the entry is one array: not a list of slices, and not strings."""
        return bool(self.dtype) and _SLICES not in _fields(self.raw)

    def advice_on_damage(self) -> str:
        return advice_on_damage(self.path.rpartition(".data-")[0])


Entries = dict[str, Entry]


def data_path(prefix: str, shard: int, shards: int) -> str:
    """Path of a data file of a checkpoint."""
    return f"{prefix}.data-{shard:05d}-of-{shards:05d}"


def index_path(prefix: str) -> str:
    """Path of the index of a checkpoint."""
    return f"{prefix}.index"


def read_index(prefix: str, slices: Mapping[str, TensorSlice] = MappingProxyType({})) -> Entries:
    """The entries of a checkpoint by name.

    Raises:
        CheckpointError: the index is missing, damaged, or of another format.
    """
    entries = _read_table(prefix)
    # The key of a slice is an ordered code, which begins with zero.
    found = {key.decode(): item for key, item in entries.items() if not key.startswith(b"\x00")}
    parts = {name: entries.get(part.key) for name, part in slices.items()}
    found.update({name: item for name, item in parts.items() if item is not None})
    return found


def data_paths(prefix: str) -> list[str]:
    """Paths of the data files of a checkpoint, according to its index.

    Raises:
        CheckpointError: the index is missing, damaged, or of another format.
    """
    with _reading(prefix), open_regular(index_path(prefix)) as file:
        key, header = next(read_table(file.read()), (b"", b""))
        if key != _HEADER_KEY:
            raise ValueError("no header")
        shards = _first(_fields(header), _SHARDS)
    return [data_path(prefix, shard, shards) for shard in range(shards)]


@dataclass(frozen=True)
class CutFile:
    """A data file of a checkpoint that ends before the bytes that the index places in it.

    Attributes:
        size: bytes of the file; 0 if it is missing.
        needed: bytes that it must have.
        names: names of the variables with missing bytes, in the order of the file.
    """

    path: str
    size: int
    needed: int
    names: tuple[str, ...]


def find_cut_files(prefix: str) -> list[CutFile]:
    """The data files of a checkpoint that are too short. Reads only the index and file sizes.

    Raises:
        CheckpointError: the index is missing, damaged, or of another format.
    """
    entries = sorted(_read_table(prefix).items(), key=lambda item: item[1].offset)
    found = []
    for path in sorted({entry.path for _, entry in entries}):
        size = os.path.getsize(path) if os.path.exists(path) else 0
        placed = [(key, entry) for key, entry in entries if entry.path == path]
        beyond = [(key, entry) for key, entry in placed if entry.offset + entry.size > size]
        if beyond:
            needed = max(entry.offset + entry.size for _, entry in beyond)
            names = (key.decode(errors="replace").strip("\x00") for key, _ in beyond)
            found.append(CutFile(path, size, needed, tuple(names)))
    return found


def _read_table(prefix: str) -> dict[bytes, Entry]:
    """All entries of an index by key, those of slices too; raises as `read_index` does."""
    with _reading(prefix), open_regular(index_path(prefix)) as file:
        items = dict(read_table(file.read()))
        header = _fields(items.pop(_HEADER_KEY))
        if _first(header, _ENDIANNESS):
            raise ValueError("big-endian numbers")
        shards = _first(header, _SHARDS)
        return {key: _entry(item, prefix, shards) for key, item in items.items()}


@contextlib.contextmanager
def _reading(prefix: str) -> Iterator[None]:
    """Within: errors of reading an index become CheckpointErrors."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {prefix}: its index must be readable. Received: {error.strerror}. Use the "
            "prefix of its files, such as model_dir/model.ckpt-100."
        ) from error
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise CheckpointError(
            f"checkpoint {index_path(prefix)}: must be the index of a TensorFlow checkpoint. "
            f"Received: {error}. Restore the file, or use an earlier checkpoint."
        ) from error


def write_index(
    prefix: str,
    entries: Mapping[str, FileRegion],
    shards: int,
    slices: Mapping[str, TensorSlice] = MappingProxyType({}),
) -> None:
    """Writes the index of a checkpoint whose data files exist, completely or not at all.

    Args:
        entries: by name; each path is one of the data files.
        slices: the slice of each name that is a part of a partitioned variable.
    """
    number = {data_path(prefix, shard, shards): shard for shard in range(shards)}
    header = _encode(_SHARDS, shards) + _encode(_VERSION, _encode(_PRODUCER, 1))
    items, wholes = {}, dict[str, list[str]]()
    for name, item in entries.items():
        key = slices[name].key if name in slices else name.encode()
        items[key] = _encoded(item, number[item.path])
        if name in slices:
            wholes.setdefault(slices[name].name, []).append(name)
    for whole, names in wholes.items():
        parts = [slices[name] for name in names]
        items[whole.encode()] = _encoded_whole(entries[names[0]].dtype, parts)
    write_whole(index_path(prefix), write_table([(_HEADER_KEY, header), *sorted(items.items())]))


def _entry(item: bytes, prefix: str, shards: int) -> Entry:
    found = _fields(item)
    dims = [dim for shape in found.get(_SHAPE, []) for dim in _fields(shape).get(_DIM, [])]
    return Entry(
        _DTYPES.get(_first(found, _DTYPE), ""),
        tuple(_first(_fields(dim), _DIM_SIZE) for dim in dims),
        data_path(prefix, _first(found, _SHARD), shards),
        _first(found, _OFFSET),
        _first(found, _SIZE),
        unmask_crc(_first(found, _CHECKSUM)),
        item,
    )


def _encoded(entry: FileRegion, shard: int) -> bytes:
    """An entry in the format of the index."""
    if isinstance(entry, Entry) and entry.raw:
        kept = _fields(entry.raw)
        kept[_SHARD] = [shard]
        fields = [(number, value) for number, found in kept.items() for value in found]
        return b"".join(_encode(n, value, fixed=n == _CHECKSUM) for n, value in fields)
    assert entry.checksum is not None
    return b"".join(
        [
            _encode(_DTYPE, _NUMBERS[entry.dtype]),
            _encode(_SHAPE, _encoded_shape(entry.shape)),
            _encode(_SHARD, shard),
            _encode(_OFFSET, entry.offset),
            _encode(_SIZE, entry.size),
            _encode(_CHECKSUM, mask_crc(entry.checksum), fixed=True),
        ]
    )


def _encoded_shape(shape: tuple[int, ...]) -> bytes:
    return b"".join(_encode(_DIM, _encode(_DIM_SIZE, dim)) for dim in shape)


def _encoded_whole(dtype: str, parts: Sequence[TensorSlice]) -> bytes:
    """The entry of a partitioned variable, which lists its slices."""
    found = [_encode(_DTYPE, _NUMBERS[dtype]), _encode(_SHAPE, _encoded_shape(parts[0].shape))]
    for part in parts:
        extents = [
            _encode(_START, start) + _encode(_LENGTH, size)
            for start, size in zip(part.start, part.size)
        ]
        found.append(_encode(_SLICES, b"".join(_encode(_EXTENT, extent) for extent in extents)))
    return b"".join(found)


def _fields(message: _Field) -> dict[int, list[_Field]]:
    """Values of a protocol buffer by field number."""
    if not isinstance(message, bytes):
        raise ValueError(f"the number {message} instead of a message")
    found: dict[int, list[_Field]] = {}
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        number, kind = key >> 3, key & 7
        value: _Field
        if kind == _NUMBER:
            value, at = read_varint(message, at)
        elif kind == _BYTES:
            size, at = read_varint(message, at)
            value, at = message[at : at + size], at + size
        elif kind == _FOUR_BYTES:
            (value,), at = struct.unpack_from("<I", message, at), at + 4
        elif kind == _EIGHT_BYTES:
            (value,), at = struct.unpack_from("<Q", message, at), at + 8
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        found.setdefault(number, []).append(value)
    return found


def _first(fields: Mapping[int, list[_Field]], number: int) -> int:
    """A field that is a number; absent ones are zero."""
    value = fields.get(number, [0])[0]
    if not isinstance(value, int):
        raise ValueError(f"bytes in field {number}, which is a number")
    return value


def _encode(number: int, value: _Field, fixed: bool = False) -> bytes:
    """A field of a protocol buffer; zero is omitted. A `fixed` number has four bytes."""
    if isinstance(value, bytes):
        return write_varint(number << 3 | _BYTES) + write_varint(len(value)) + value
    if not value:
        return b""
    if fixed:
        return write_varint(number << 3 | _FOUR_BYTES) + struct.pack("<I", value)
    return write_varint(number << 3 | _NUMBER) + write_varint(value)


def is_a_checkpoint(prefix: str) -> bool:
    """Whether a path such as `model_dir/model.ckpt-100` has its index and all data files."""
    try:
        shards = data_paths(prefix)
    except CheckpointError:
        return False
    return bool(shards) and all(map(os.path.isfile, shards))


def all_checkpoints(folder: str) -> list[str]:
    """The prefixes of the complete checkpoints in a folder, in the order of their steps."""
    prefixes = (str(index.with_suffix("")) for index in Path(folder).glob("*.index"))
    return sorted(filter(is_a_checkpoint, prefixes), key=lambda prefix: (step_of(prefix), prefix))


def checkpoint_before(prefix: str) -> Optional[str]:
    """The last complete checkpoint of an earlier step in the same folder, or None."""
    found = all_checkpoints(os.path.dirname(prefix) or ".")
    return next((p for p in reversed(found) if step_of(p) < step_of(prefix)), None)


def step_of(prefix: str) -> int:
    """The step at the end of a checkpoint's name; -1 if there is none."""
    step = re.search(r"-(\d+)$", prefix)
    return int(step.group(1)) if step else -1


def advice_on_damage(prefix: str) -> str:
    """A sentence that advises what to do about a damaged checkpoint."""
    before = checkpoint_before(prefix)
    if before is None:
        return "Restore the file; there is no earlier checkpoint."
    listed = os.path.join(os.path.dirname(prefix), "checkpoint")
    # TensorFlow looks up relative names next to the list.
    line = f'the line model_checkpoint_path: "{os.path.basename(before)}"'
    return (
        f"Restore the file, or resume from the earlier checkpoint {before}: set the "
        f"content of {listed} to {line}"
    )
