"""Messages as bytes and back: a JSON header, then the bytes of the arrays.

A message is one frame or several. The first has a prefix and the header, which is JSON: the fields
of the message in order, by the types that its class declares, and dtype and shape of every array.
Sizes are checked before anything is allocated, and only these classes are built. Of an array of
zero bytes, only the header is sent.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import struct
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from cerebras_tf.address.messages import ANSWERS, REQUESTS
from cerebras_tf.errors import CerebrasError, DataError
from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.types import parse_type
from cerebras_tf.user_files import parse_json, reason

MAX_HEADER_BYTES = 2 << 20
MAX_ARRAYS = 65536
MAX_RANK = 16
FRAME_BYTES = 1 << 20  # of arrays; larger frames are not faster
MAX_FRAME_BYTES = 4 << 20
_PREFIX = struct.Struct("<4sQQI")  # magic, number, answered, length of the header
_MAGIC = b"CSW1"
_MAX_INT = 1 << 63
_DTYPES = (
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8", "bool"),
)
_STATIC_TYPE = re.compile(r"[a-z0-9]{1,20}\[([0-9]{1,18}(, ?[0-9]{1,18}){0,31})?\]")
_json = json.JSONEncoder(allow_nan=False).encode
_NAMES = {kind.__name__: kind for kind in (*REQUESTS, *ANSWERS)}


def _protocol() -> str:
    """A digest of the messages' fields and their types."""
    found: dict[str, str] = {}

    def add(hint: Any) -> None:
        if _is_message(hint) and hint.__name__ not in found:
            fields = dataclasses.fields(hint)
            found[hint.__name__] = " ".join(f"{each.name}:{each.type}" for each in fields)
            for each in _fields(hint).values():
                add(each)
        for part in typing.get_args(hint):
            add(part)

    for kind in _NAMES.values():
        add(kind)
    return hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()[:16]


def encode(number: int, message: Any, answered: int = 0) -> Iterator[bytes]:
    """The frames of a message; arrays are read when their frames are asked for.

    Args:
        number: of the request, or of the request that is answered.
        answered: all requests up to this one are answered, so that no answer is sent again.

    Raises:
        DataError: an array has another dtype, or the message is too large.
    """
    arrays: list[Array] = []
    kind: Any = type(message)
    fields = _encoder(kind)(message, arrays)
    table = [[a.dtype.name, list(a.shape), _is_zero(a)] for a in arrays]
    header = _json([kind.__name__, fields, table]).encode()
    if len(header) > MAX_HEADER_BYTES or len(arrays) > MAX_ARRAYS:
        raise DataError(
            f"wafer: a message must have at most {MAX_HEADER_BYTES} bytes besides its arrays, and "
            f"{MAX_ARRAYS} arrays. Received: {len(header)} and {len(arrays)}. Use fewer features "
            "or variables."
        )
    start = _PREFIX.pack(_MAGIC, number, answered, len(header)) + header
    sent = [a for a, (_, _, is_zero) in zip(arrays, table) if not is_zero]
    if sum(a.nbytes for a in sent) <= FRAME_BYTES:
        yield b"".join([start, *(a.tobytes() for a in sent)])
        return
    yield start
    for array in sent:
        view = memoryview(_bytes_of(array))  # type: ignore[arg-type, unused-ignore]
        for at in range(0, array.nbytes, FRAME_BYTES):
            yield bytes(view[at : at + FRAME_BYTES])


class Reader:
    """Puts frames together to messages.

    Args:
        max_bytes: of the arrays of a message.
        kinds: messages that are allowed.

    Attributes:
        answered: see encode; of the message that began last.
    """

    def __init__(self, max_bytes: int, kinds: Iterable[type]) -> None:
        self._max_bytes = max_bytes
        self._kinds = {kind.__name__ for kind in kinds}
        self.answered = 0
        self._open: Optional[tuple[int, str, Any, list[Array]]] = None
        self._unread: list[Array] = []  # bytes of arrays that are still to come

    def feed(self, frame: bytes) -> Optional[tuple[int, Any]]:
        """Takes a frame; returns the number and the message that it completes, if any.

        Raises:
            DataError: the frames are not a message that is allowed.
        """
        try:
            if len(frame) > MAX_FRAME_BYTES:
                raise _fault(f"a frame of {len(frame)} bytes")
            rest = memoryview(frame)
            if self._open is None:
                rest = self._begin(rest)
            self._fill(rest)
            if self._unread:
                return None
            assert self._open is not None
            number, name, fields, arrays = self._open
            self._open = None
            for array in arrays:
                if array.dtype == np.bool_:  # of other bytes than 0 and 1
                    np.not_equal(array.view(np.uint8), 0, out=array)
            return number, _decoder(_NAMES[name])(fields, arrays)
        except DataError:
            raise
        except (CerebrasError, ValueError) as error:
            raise _fault(reason(error)) from error

    def _begin(self, frame: memoryview) -> memoryview:
        if len(frame) < _PREFIX.size:
            raise _fault("a frame without a header")
        magic, number, self.answered, length = _PREFIX.unpack_from(frame)
        end = _PREFIX.size + length
        if magic != _MAGIC or length > MAX_HEADER_BYTES or len(frame) < end:
            raise _fault("a frame without a header")
        found = parse_json(bytes(frame[_PREFIX.size : end]), list, unique=True)
        if len(found) != 3 or not isinstance(found[2], list) or len(found[2]) > MAX_ARRAYS:
            raise _fault("another header")
        name, fields, table = found
        if not isinstance(name, str) or name not in self._kinds:
            raise _fault(f"message {name!r:.40}")
        left, kinds = self._max_bytes, []
        for row in table:
            kind, zero = _checked_row(row)
            left -= math.prod(kind[1]) * np.dtype(kind[0]).itemsize
            if left < 0:
                raise _fault(f"arrays of more than {self._max_bytes} bytes")
            kinds.append((kind, zero))
        try:
            arrays = [np.zeros(k[1], k[0]) if zero else np.empty(k[1], k[0]) for k, zero in kinds]
        except MemoryError as error:
            raise _fault("arrays of more bytes than there is memory") from error
        self._unread = [
            _bytes_of(array) for array, (_, zero) in zip(arrays, kinds) if not zero and array.nbytes
        ]
        self._unread.reverse()
        self._open = number, name, fields, arrays
        return frame[end:]

    def _fill(self, rest: memoryview) -> None:
        while rest:
            if not self._unread:
                raise _fault("bytes after the arrays")
            target = self._unread.pop()
            size = min(len(rest), target.nbytes)
            target[:size] = np.frombuffer(rest[:size], np.uint8)
            rest = rest[size:]
            if size < target.nbytes:
                self._unread.append(target[size:])


def _fault(received: str) -> DataError:
    return DataError(
        f"wafer: a message must be well formed. Received: {received}. Use the same version of "
        "cerebras_tf on both sides."
    )


def _checked_row(row: Any) -> tuple[tuple[str, tuple[int, ...]], bool]:
    """dtype and shape of an array in a header, and whether it is zero."""
    if not (isinstance(row, list) and len(row) == 3 and isinstance(row[1], list)):
        raise _fault("an array without a type")
    dtype, shape, zero = row
    sizes = all(type(size) is int and 0 <= size < _MAX_INT for size in shape)
    if dtype not in _DTYPES or not sizes or len(shape) > MAX_RANK or type(zero) is not bool:
        raise _fault(f"an array of {row!r:.60}")
    return (dtype, tuple(shape)), zero


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _is_zero(array: Array) -> bool:
    """Whether all bytes are zero, of an array that is large enough for that to matter."""
    return array.nbytes >= 4096 and not _bytes_of(array).any()


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _fields(kind: type) -> dict[str, Any]:
    """Types of a message's fields, by name, in order."""
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


@functools.cache
def _encoder(hint: Any) -> Callable[[Any, list[Array]], Any]:
    """Makes JSON of values of a declared type; arrays are replaced by their numbers."""
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if hint == Array:
        return _encode_array
    if hint is TensorType:
        return lambda value, arrays: str(value)
    if _is_message(hint):
        fields = [(name, _encoder(kind)) for name, kind in _fields(hint).items()]
        return lambda value, arrays: [part(getattr(value, name), arrays) for name, part in fields]
    if origin is None:
        return lambda value, arrays: hint(value)
    if origin is Union:
        part = _encoder(given[0])
        return lambda value, arrays: None if value is None else part(value, arrays)
    if issubclass(origin, Mapping):
        part = _encoder(given[1])
        return lambda value, arrays: {name: part(item, arrays) for name, item in value.items()}
    part, order = _encoder(given[0]), sorted if issubclass(origin, frozenset) else iter
    return lambda value, arrays: [part(item, arrays) for item in order(value)]


def _encode_array(value: Any, arrays: list[Array]) -> int:
    array = np.require(value if isinstance(value, np.ndarray) else np.array(value), None, "C")
    if array.dtype.name not in _DTYPES or not array.dtype.isnative:
        raise DataError(
            f"wafer: arrays must be of {', '.join(_DTYPES)}. Received: {array.dtype}. Convert them."
        )
    arrays.append(array)
    return len(arrays) - 1


@functools.cache
def _decoder(hint: Any) -> Callable[[Any, Sequence[Array]], Any]:
    """Makes values of a declared type; raises ValueError where JSON has another one."""
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if hint == Array:
        return _decode_array
    if hint is TensorType:
        return lambda found, arrays: _type(found)
    if _is_message(hint):
        parts = [_decoder(kind) for kind in _fields(hint).values()]

        def message(found: Any, arrays: Sequence[Array]) -> Any:
            _require(type(found) is list and len(found) == len(parts), found)
            return hint(*[part(item, arrays) for part, item in zip(parts, found)])

        return message
    if origin is None:
        plain: Any = {str: _text, float: _float, int: _integer, bool: _boolean}
        read = plain[hint]
        return lambda found, arrays: read(found)
    if origin is Union:
        part = _decoder(given[0])
        return lambda found, arrays: None if found is None else part(found, arrays)
    if issubclass(origin, Mapping):
        part = _decoder(given[1])

        def mapping(found: Any, arrays: Sequence[Array]) -> Any:
            _require(type(found) is dict, found)
            return {_text(name): part(item, arrays) for name, item in found.items()}

        return mapping
    part, kind = _decoder(given[0]), frozenset if issubclass(origin, frozenset) else tuple

    def items(found: Any, arrays: Sequence[Array]) -> Any:
        _require(type(found) is list, found)
        return kind([part(item, arrays) for item in found])

    return items


def _decode_array(found: Any, arrays: Sequence[Array]) -> Array:
    _require(type(found) is int and 0 <= found < len(arrays), found)
    array: Array = arrays[found]
    return array


def _type(found: Any) -> TensorType:
    _require(type(found) is str and _STATIC_TYPE.fullmatch(found) is not None, found)
    return parse_type(found)


def _text(found: Any) -> str:
    _require(type(found) is str, found)
    found.encode()  # half a character is none
    return str(found)


def _float(found: Any) -> float:
    _require(type(found) in (int, float) and math.isfinite(found), found)
    return float(found)


def _integer(found: Any) -> int:
    _require(type(found) is int and abs(found) < _MAX_INT, found)
    return int(found)


def _boolean(found: Any) -> bool:
    _require(type(found) is bool, found)
    return bool(found)


def _require(holds: bool, found: Any) -> None:
    if not holds:
        raise ValueError(f"a field with {found!r:.60}")


# Equal on both sides, or they do not understand each other.
PROTOCOL = _protocol()
