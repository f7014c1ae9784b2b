"""Lists the files that a preparation reads, of files and folders given to it."""

from __future__ import annotations

import os
from pathlib import Path

from cerebras_tf.api import counted
from cerebras_tf.errors import DataError
from modelzoo.common.files.folders import files_below
from modelzoo.common.files.path_advice import advice_on_path


def named_like(path, suffixes):
    """Whether a name ends like one of some suffixes in lower case, in letters of any case."""
    return str(path).lower().endswith(suffixes)


def find_inputs(paths, suffixes, log=lambda line: None):
    """Lists input files.

    Args:
        paths: files, or folders of which all files named like `suffixes` are taken, at any depth,
            also through symbolic links.
        log: called with a line for each folder with files that are skipped because of their names.

    Returns:
        Sorted paths, each once; a link to a file is a file of its own.
    """
    found: dict[str, str] = {}  # each path, by the one whose folders are no links
    for path in map(Path, [paths] if isinstance(paths, str) else paths):
        if path.is_dir():
            files = files_below(path)
            inside = [file for file in files if named_like(file, suffixes)]
            others = [file for file in files if not named_like(file, suffixes) and file.is_file()]
            _refuse_lost(file for file in inside if not file.exists())
            inside = [file for file in inside if file.is_file()]
            received = f"a folder without any, with {counted(len(others), 'other')}"
        else:
            inside, others = [path] if path.is_file() else [], []
            received = "no such path"
        if not inside:
            advice = advice_on_path(path, "Check the path.")
            raise DataError(
                f"{path}: must be a file, or a folder with files {', '.join(suffixes)}. Received: "
                f"{received}. {advice}"
            )
        if others:
            log(
                f"{path}: {len(others)} of {len(others) + len(inside)} files are skipped because "
                f"of their names, such as {others[0]}; only files that end in "
                f"{', '.join(suffixes)} are read"
            )
        for file in inside:
            found.setdefault(os.path.join(os.path.realpath(file.parent), file.name), str(file))
    return sorted(found.values())


def _refuse_lost(paths):
    for path in paths:
        raise DataError(f"{path}: must be an existing file. Received: none. {advice_on_path(path)}")
