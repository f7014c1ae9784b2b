"""Reads and writes .safetensors files a tensor at a time.

Format (github.com/huggingface/safetensors): 8 bytes, the little-endian length of a JSON header; the
header, which gives type, shape and place of every tensor; their bytes, little-endian, row by row.
The library of that name is not used: its writer takes all tensors at once, and its reader keeps
what it has read in memory.
"""

import json
import math
import os
import struct
from dataclasses import dataclass

import numpy as np

from cerebras_tf.errors import CheckpointError

# Types a weight may have, and the type that NumPy reads its bytes as.
STORED_AS: dict[str, np.dtype] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_MAX_HEADER_BYTES = 100_000_000  # the library's own limit


@dataclass(frozen=True)
class Place:
    """Type, shape and first and last byte of a tensor, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsReader:
    """The tensors of one file."""

    def __init__(self, path):
        self.path = str(path)
        try:
            with open(path, "rb") as file:
                self.places, self._data = _read_header(file, self.path)
        except OSError as error:
            raise CheckpointError(
                f"{path}: must be a readable file. Received: {error.strerror}. Use the folder with "
                "all files of the model."
            ) from error

    def read(self, name):
        """Reads one tensor as float32."""
        place = self.places[name]
        if place.dtype not in STORED_AS:
            raise CheckpointError(
                f"{self.path}: tensor {name} must be of type {', '.join(STORED_AS)}. Received: "
                f"{place.dtype}. Save the model in one of them."
            )
        stored = STORED_AS[place.dtype]
        count = (place.end - place.begin) // stored.itemsize
        array = np.fromfile(self.path, stored, count, offset=self._data + place.begin)
        return widen(array, place.dtype).reshape(place.shape)


def widen(array, dtype):
    """Returns the values of type `dtype` (a key of STORED_AS) as float32, exactly."""
    if dtype == "BF16":  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def narrow(array, dtype):
    """Rounds float32 values to the type `dtype`, to even; returns them as in STORED_AS."""
    if dtype == "BF16":
        import ml_dtypes

        return array.astype(ml_dtypes.bfloat16).view(np.uint16)
    return array.astype(STORED_AS[dtype], copy=False)


def _read_header(file, path):
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
        raise _damaged(path, f"{size} bytes, whose first 8 specify a header of {length} bytes")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        places = {
            name: Place(x["dtype"], tuple(map(int, x["shape"])), *map(int, x["data_offsets"]))
            for name, x in header.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, f"an invalid header ({error})") from error
    for name, place in places.items():
        _check_place(name, place, size - 8 - length, path)
    return places, 8 + length


def _check_place(name, place, data_bytes, path):
    if not 0 <= place.begin <= place.end <= data_bytes:
        what = f"{data_bytes} bytes of data, of which tensor {name} ends at {place.end}"
        raise _damaged(path, what)
    if place.dtype in STORED_AS:
        wanted = math.prod(place.shape) * STORED_AS[place.dtype].itemsize
        if place.end - place.begin != wanted:
            what = f"tensor {name} of {place.end - place.begin} bytes instead of {wanted}"
            raise _damaged(path, what)


def _damaged(path, received):
    return CheckpointError(
        f"{path}: must be a complete .safetensors file. Received: {received}. Download or copy it "
        "again."
    )


class SafetensorsWriter:
    """Writes the tensors of one file in the order in which they are announced."""

    def __init__(self, path, shapes, dtype):
        self._dtype, self._shapes = dtype, dict(shapes)
        self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`
        header = {"__metadata__": {"format": "pt"}}  # what transformers asks for
        end = 0
        for name, shape in self._shapes.items():
            begin, end = end, end + math.prod(shape) * STORED_AS[dtype].itemsize
            place = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
            header[name] = place
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # so that the data are aligned
        self._file.write(struct.pack("<Q", len(text)) + text)

    def write(self, name, array):
        """Writes the next tensor, rounded to the file's type where that is narrower."""
        expected = next(iter(self._shapes))
        assert name == expected, f"{name} instead of {expected}"
        assert array.shape == self._shapes.pop(name), name
        np.ascontiguousarray(narrow(array, self._dtype)).tofile(self._file)

    def close(self):
        """Ends the file, on disk."""
        assert not self._shapes, f"not written: {list(self._shapes)}"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
