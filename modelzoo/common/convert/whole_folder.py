"""Writes the files of a folder all or not at all. Files it was not told of stay as they are.

New files are made in a folder inside the target and moved out of it at the end; the file that
makes the others count, such as TensorFlow's ``checkpoint``, goes first of the old and comes last
of the new. A conversion that is stopped leaves no folder that looks complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from cerebras_tf.errors import CheckpointError

_UNFINISHED = ".unfinished"


@contextlib.contextmanager
def whole_folder(target, patterns, overwrite):
    """Gives a folder to write files in, and moves them to `target` when the block ends well.

    Args:
        target: folder of the files; made where there is none.
        patterns: file name patterns of what is written, the last of which comes last. Files of
            these names that are there already are replaced.
        overwrite: whether that is wanted.

    Yields:
        Path of the folder to write in.

    Raises:
        CheckpointError: there are such files and `overwrite` is False, or the folder cannot be
            made or written to.
    """
    target = Path(target)
    old = [path for pattern in patterns for path in sorted(target.glob(pattern))]
    if old and not overwrite:
        raise CheckpointError(
            f"{target}: must hold no checkpoint yet. Received: {old[-1].name} there. Give another "
            "folder, or --overwrite to replace it."
        )
    made = not target.exists()
    partial = target / _UNFINISHED
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        new = [path for pattern in patterns for path in sorted(partial.glob(pattern))]
        for path in reversed(old):
            path.unlink()
        for path in new:
            os.replace(path, target / path.name)
    except OSError as error:
        raise CheckpointError(
            f"{target}: must be a folder with room for the checkpoint. Received: "
            f"{error.strerror or error}. Free disk space, or give another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                target.rmdir()  # only where nothing came of it
