"""Reads files that others may have written: JSON, YAML, npz, zip and PyTorch's files.

Every reader opens a regular file only, within a size, and returns values of the expected types.
For a file that cannot be used it raises OSError or ValueError; `reason` returns the text of both.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Union

File = Union[str, os.PathLike[str]]

MAX_TEXT_BYTES = 1 << 31
MAX_DEPTH = 100  # of nested objects and lists
MAX_YAML_NODES = 100_000  # after aliases are replaced
# Bytes that the members of an archive may have more than the archive itself.
MAX_EXPANDED_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 24
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def reason(error: BaseException) -> str:
    """What is wrong with a file, from the exception of a reader; one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text.splitlines() or [""])[0] or type(error).__name__


# C0 and C1 controls but for tab and line feed, and characters that change the direction of text.
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (
        *(code for code in range(32) if code not in (9, 10)),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    )
}


def printable(text: str) -> str:
    """A text for a terminal or a page: control characters and half characters are escaped."""
    return text.translate(_CONTROLS)


@contextlib.contextmanager
def parsing() -> Iterator[None]:
    """Within: whatever a parser raises for malformed content becomes a ValueError."""
    try:
        yield
    except (ValueError, ImportError):
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise ValueError(reason(error)) from error
    except RecursionError as error:
        raise ValueError("values that are nested too deep") from error
    except MemoryError as error:
        raise ValueError("values that need more memory than there is") from error
    except Exception as error:  # of zip, zlib, struct, pickle, NumPy, PyTorch
        text = "" if isinstance(error, KeyError) and not error.args else f" ({reason(error)})"
        raise ValueError(f"damaged or foreign content{text}") from error


def open_regular(path: File) -> BinaryIO:
    """Opens a file to read bytes; raises OSError for folders, pipes, sockets and devices."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # NUL and half characters
        raise OSError(errno.EINVAL, f"a path that cannot exist ({error})", str(path)) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    kind = next((name for check, name in _KINDS if check(mode)), "a special file")
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, f"{kind} and not a regular file", str(path))


def read_bytes(path: File, limit: int = MAX_TEXT_BYTES) -> bytes:
    """The bytes of a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"{size} bytes, more than {limit}", str(path))
        return file.read(limit)


def read_text(path: File, encoding: str = "utf-8", limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a regular file; line ends are those of the file, but for CRLF and CR."""
    text = read_bytes(path, limit).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def parse_json(text: Union[str, bytes], shape: Any = object, unique: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        shape: the types that it must have; see `check_types`.
        unique: whether a key that an object has twice is an error.
    """
    with parsing():
        value = json.loads(text, object_pairs_hook=_unique if unique else None)
        _check_depth(value)
    check_types(value, shape)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} twice")
    return found


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level := [
        child
        for item in level
        if isinstance(item, (dict, list))
        for child in (item.values() if isinstance(item, dict) else item)
        if isinstance(child, (dict, list))
    ]:
        depth += 1
        if depth > MAX_DEPTH:
            raise RecursionError


def read_json(path: File, shape: Any = object, encoding: str = "utf-8") -> Any:
    """The value of a JSON file, of the types of `shape`; see `check_types`."""
    return parse_json(read_text(path, encoding), shape)


def check_types(value: Any, shape: Any, where: str = "the value") -> None:
    """Raises ValueError if a value of JSON has other types.

    Args:
        shape: a type (`object` for any; an int is a float, a bool is no int); a tuple of shapes
            that are allowed; `[shape]` for a list; `{str: shape}` for an object with any keys;
            `{"key": shape, "other?": shape}` for an object with these keys, those with a question
            mark optional, and any others.
        where: name of the value, for the error.
    """
    if isinstance(shape, tuple):
        if not any(_fits(value, each) for each in shape):
            raise ValueError(f"{where} is {_kind(value)}")
    elif isinstance(shape, type):
        wanted = (int, float) if shape is float else shape
        if not isinstance(value, wanted) or (isinstance(value, bool) and shape in (int, float)):
            raise ValueError(f"{where} is {_kind(value)} and not {_NAMES.get(shape, shape)}")
        if isinstance(value, str):
            value.encode("utf-8")  # half a character is none
    elif isinstance(shape, list):
        check_types(value, list, where)
        for item in value:
            check_types(item, shape[0], f"an item of {where}")
    else:
        check_types(value, dict, where)
        for key, each in shape.items():
            if key is str:
                for name, item in value.items():
                    check_types(name, str, f"a key of {where}")
                    check_types(item, each, name[:60])
            elif key.rstrip("?") in value:
                check_types(value[key.rstrip("?")], each, key.rstrip("?"))
            elif not key.endswith("?"):
                raise ValueError(f"{where} has no {key}")


def read_weight_index(path: File) -> dict[str, str]:
    """File name by tensor of a model's index; all files are in the folder of the index."""
    found = read_json(path, {"weight_map": {str: str}})["weight_map"]
    for name in set(found.values()):
        if name in ("", ".", "..") or set(name) & set("/\\\0"):
            raise ValueError(f"weight_map with {name!r:.60}, which is no file of the same folder")
    return dict(found)


_NAMES = {dict: "an object", list: "a list", str: "a string", int: "an integer", float: "a number"}


def _kind(value: Any) -> str:
    shown = f"{value!r:.40}"
    return f"{_NAMES.get(type(value), '')} {shown}".strip()


def _fits(value: Any, shape: Any) -> bool:
    try:
        check_types(value, shape)
    except ValueError:
        return False
    return True


def check_yaml_nodes(node: Any) -> None:
    """Raises ValueError if a composed YAML node has too many nodes once aliases are replaced.

    Texts must have no half characters, and no alias may refer to a node around it.
    """
    counts: dict[int, int] = {}

    def count(node: Any) -> int:
        if counts.get(id(node)) == 0:
            raise RecursionError
        if id(node) not in counts:
            counts[id(node)] = 0  # until its parts are counted
            parts = node.value if isinstance(node.value, list) else []
            if isinstance(node.value, str):
                node.value.encode("utf-8")
            flat = [item for part in parts for item in (part if type(part) is tuple else (part,))]
            counts[id(node)] = 1 + sum(map(count, flat))
        return counts[id(node)]

    if node is not None and count(node) > MAX_YAML_NODES:
        raise ValueError(f"more than {MAX_YAML_NODES} values, aliases replaced")


def read_npz(path: File) -> dict[str, Any]:
    """The arrays of an .npz file, by name; it may hold nothing else, and no Python objects."""
    with open_regular(path) as file, open_zip(file) as archive:
        names = archive.namelist()
        for name in names:
            if not name.endswith(".npy"):
                raise ValueError(f"{name!r:.60}, which is no array")
        return {name.removesuffix(".npy"): read_array(archive, name) for name in names}


def read_array(archive: zipfile.ZipFile, name: str) -> Any:
    """The array of a member of an archive, which must have no bytes after it."""
    import numpy as np

    with archive.open(name) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"{name}, which has bytes after the array")
    return array


@contextlib.contextmanager
def open_zip(file: BinaryIO, most: int = MAX_EXPANDED_BYTES) -> Iterator[zipfile.ZipFile]:
    """Opens an archive whose names are unique and whose members have a reasonable size.

    Args:
        most: bytes that the members may have more than the archive itself.
    """
    with parsing(), zipfile.ZipFile(file) as archive:
        size = file.seek(0, os.SEEK_END)
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise ValueError("an archive with a name twice")
        expanded = sum(item.file_size for item in archive.infolist())
        if expanded > size + most:
            raise ValueError(f"{expanded} bytes in an archive of {size} bytes")
        yield archive


def load_torch(path: File, **options: Any) -> Any:
    """What `torch.load` returns for a file, whose checksums are compared.

    Args:
        **options: of `torch.load`. With `mmap`, tensors stay on disk until they are used; files of
            PyTorch before 1.6 are read as a whole and have no checksums.
    """
    import torch

    with open_regular(path) as file:
        zipped = file.read(4) == b"PK\x03\x04"
        if zipped:
            with open_zip(file) as archive:
                _check_members(archive)
    with parsing():
        return torch.load(path, **{**options, "mmap": zipped and options.get("mmap", False)})


def read_torch(path: File, mmap: bool = True) -> dict[str, Any]:
    """The dense tensors of a PyTorch file of weights, by name, on the CPU; see `load_torch`."""
    import torch

    found = load_torch(path, map_location="cpu", weights_only=True, mmap=mmap)
    if not isinstance(found, Mapping):
        raise ValueError(f"{type(found).__name__} in place of tensors by name")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(f"{name!r:.60}, which is no tensor with a name")
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise ValueError(f"tensor {name:.60}, which is sparse, quantized or on the meta device")
    return dict(found)


def _check_members(archive: zipfile.ZipFile) -> None:
    for name in archive.namelist():
        with archive.open(name) as member:
            while member.read(_CHUNK_BYTES):
                pass  # the end of a member is where its checksum is compared
