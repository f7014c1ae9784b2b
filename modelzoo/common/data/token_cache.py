"""Files of the tokens of large texts: checked when they are opened, and limited in number.

A file holds the bytes of the text and a CRC-32 of what follows, both int64, then the tokens.
Processes may use the folder at the same time: a file is renamed when it is whole, and one that is
removed stays readable where it is open.
"""

import contextlib
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np

from cerebras_tf.api import get_logger
from cerebras_tf.environment import user_cache_folder
from cerebras_tf.errors import DataError
from cerebras_tf.user_files import open_regular
from cerebras_tf.whole_file import remove_partial, replacing

MAX_BYTES = 32 << 30  # of all files of the default folder
BLOCK_BYTES = 1 << 22
HEADER = struct.Struct("<qq")
OWN_FILE = re.compile(r"[0-9a-f]{32}\.tokens")


def default_folder():
    """Returns the folder of tokens in the user's cache folder, a Path."""
    return Path(user_cache_folder(), "cerebras_tf", "tokens")


def open_tokens(path, parts, dtype):
    """Opens the file of a text, which is written first if it does not exist or is damaged.

    In the default folder, the least recently used files are removed above MAX_BYTES.

    Args:
        parts: yields tokens, and the number of bytes of their text.

    Returns:
        The tokens, a memory map; the bytes of the text; and the CRC-32 of the tokens.
    """
    try:
        found = _read(path, dtype)
        if found is None:
            _write(path, parts, dtype)
            found = _read(path, dtype)
        with contextlib.suppress(OSError):  # a folder that cannot be written
            os.utime(path)
        if path.parent == default_folder():
            remove_old(path)
    except OSError as error:
        raise DataError(
            f"{path}: must be a writable file, with disk space for the tokens. Received: "
            f"{error.strerror}. Set cache_dir to another folder."
        ) from error
    if found is None:
        raise DataError(f"{path}: must be undamaged. Received: another CRC-32. Check the disk.")
    return found


def _read(path, dtype):
    """Returns what `open_tokens` returns; None without an undamaged file."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
                get_logger().warning("%s: other users can write it: tokens are made again", path)
                return None
            header = file.read(HEADER.size)
            start, crc = file.tell(), 0
            while block := file.read(BLOCK_BYTES):
                crc = zlib.crc32(block, crc)
            size = file.tell() - start
            if len(header) == HEADER.size and not size % dtype.itemsize:
                text_bytes, expected = HEADER.unpack(header)
                if crc == expected and not size:  # which cannot be mapped
                    return np.empty(0, dtype), text_bytes, crc
                if crc == expected:
                    shape = (size // dtype.itemsize,)
                    return np.memmap(file, dtype, "r", HEADER.size, shape), text_bytes, crc
    except FileNotFoundError:
        return None
    get_logger().warning("%s is damaged: the tokens are made again", path)
    return None


def _write(path, parts, dtype):
    get_logger().info("the text is large: tokens in %s", path)
    for folder in reversed((path.parent, *path.parent.parents)):
        folder.mkdir(mode=0o700, exist_ok=True)
    with replacing(path) as partial, open(partial, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        text_bytes = crc = 0
        file.write(HEADER.pack(text_bytes, crc))
        for tokens, size in parts:
            block = tokens.astype(dtype).tobytes()
            file.write(block)
            crc = zlib.crc32(block, crc)
            text_bytes += size
        file.seek(0)
        file.write(HEADER.pack(text_bytes, crc))


def remove_old(kept):
    """Removes files next to `kept` until all have at most MAX_BYTES, the least recently used first.

    Files that a process left incomplete are removed as well. Those of other names stay.
    """
    remove_partial(kept.parent)
    found = []
    for entry in os.scandir(kept.parent):
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            if OWN_FILE.fullmatch(entry.name) and entry.is_file():
                found.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total > MAX_BYTES and path != str(kept):
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
