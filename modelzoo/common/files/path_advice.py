"""What to do about a path where nothing is: the name that was probably meant, or another advice."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.suggestions import did_you_mean_path, nearest_path

LOOKED_UP = (
    "Relative paths are looked up from the current folder, the YAML's folder and those above it."
)
# How the names of a checkpoint's files end.
CHECKPOINT_END = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def advice_on_path(path, otherwise=LOOKED_UP):
    """Returns `Did you mean ...?` with the nearest path, or the other where something is there.

    Of a symbolic link that leads nowhere it says so, also where that is a folder on the way.
    """
    return _advice_on_link(path) or did_you_mean_path(path) or otherwise


def advice_on_folder(path, otherwise=LOOKED_UP):
    """The same for a folder: of the names nearby, that of a file was not meant."""
    near = nearest_path(path)
    if near is not None and not near.is_dir():
        return _advice_on_link(path) or otherwise
    return advice_on_path(path, otherwise)


def _advice_on_link(path):
    for part in (Path(path), *Path(path).parents):
        if os.path.islink(part) and not os.path.exists(part):
            return (
                f"{part} is a symbolic link whose target is missing: {os.readlink(part)}. Bring "
                "that back, or correct the link."
            )
    return None


def unread(error):
    """Returns the class of what to raise for a file that a params file names and nobody can read.

    A DataError where nothing is at the path: models are compiled without such files. A ConfigError
    for a file that may not be opened, a folder, or one of another kind.
    """
    absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return DataError if absent else ConfigError


def advice_on_vocabulary(path, error, algorithm):
    """Returns what to do about the file of a vocabulary that cannot be read.

    Args:
        path: the file.
        error: the OSError, or what else reading it ended with.
        algorithm: of `cerebras-tf prepare vocab`, which makes such files.
    """
    if unread(error) is ConfigError:
        return "Name another file."
    advice = (
        f"`cerebras-tf prepare vocab --algorithm {algorithm}` makes one; a trained model needs the "
        "one that it was trained with."
    )
    return f"{advice_on_path(path, '')} {advice}".strip()


def advice_on_checkpoint(prefix, otherwise):
    """The same for the prefix that the files of a checkpoint have in common."""
    link = _advice_on_link(prefix)
    if link:
        return link
    near = None if glob.glob(f"{glob.escape(str(prefix))}.*") else nearest_path(prefix)
    return f"Did you mean {CHECKPOINT_END.sub('', str(near))}?" if near else otherwise
