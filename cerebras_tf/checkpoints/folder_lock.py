"""Locks a model folder of tf.estimator, and removes unfinished files of checkpoints."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cerebras_tf.bundle.links import remove_begun
from cerebras_tf.checkpoints.writer import remove_killed
from cerebras_tf.memoryx.folder_lock import locked_folder


def locked(model_dir: str, writes: bool = True) -> contextlib.AbstractContextManager[None]:
    """Creates a folder and locks it for training; see memoryx.folder_lock.

    Unfinished files and checkpoints in the folder are removed at both ends.

    Args:
        writes: False to write nothing, and to lock a folder only if it was locked before.

    Raises:
        ConfigError: the folder cannot be created, or another process or thread trains in it.
    """
    return locked_folder(model_dir, writes, _clean)


def _clean(model_dir: str) -> None:
    remove_begun(model_dir)
    remove_killed(Path(model_dir))
