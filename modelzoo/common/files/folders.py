"""Lists the files below a folder."""

from __future__ import annotations

import os
from pathlib import Path

from cerebras_tf.errors import DataError


def files_below(top):
    """Lists the files below a folder, also through symbolic links to folders.

    Each folder is read once, also if several links lead to it. Files and folders whose names begin
    with a dot are not listed: editors and notebooks keep copies of text in them.

    Returns:
        Sorted paths.

    Raises:
        DataError: a folder cannot be read.
    """
    files: list[Path] = []
    seen = set()

    def refuse(error):
        raise DataError(
            f"{error.filename}: must be a readable folder. Received: {error.strerror}. Correct its "
            "permissions, or list the files and folders to read."
        ) from error

    def is_listed(name):
        return not name.startswith(".")

    for folder, inside, names in os.walk(top, onerror=refuse, followlinks=True):
        inside[:] = filter(is_listed, inside)
        inside.sort(key=lambda name: (os.path.islink(os.path.join(folder, name)), name))
        place = os.path.realpath(folder)
        if place in seen:
            inside.clear()
            continue
        seen.add(place)
        files += [Path(folder, name) for name in filter(is_listed, names)]
    return sorted(files)


def refuse_repeated(paths):
    """Raises a DataError if data_dir names a file or folder twice, also through a link."""
    seen: dict[str, str] = {}
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            also = "" if seen[place] == path else f", which is also {seen[place]}"
            raise DataError(
                f"data_dir: must contain every file once. Received: {path} twice{also}. Remove one."
            )
        seen[place] = path
