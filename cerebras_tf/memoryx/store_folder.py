"""The folder of a store, which goes with its process or when the next store is made."""

from __future__ import annotations

import os
from pathlib import Path

from cerebras_tf.errors import StoreError
from cerebras_tf.memoryx.own_folder import OwnFolder, remove_abandoned

_PREFIX = "memoryx-"
_RANK = "rank_"


class StoreFolder(OwnFolder):
    """A new folder below another; those that killed processes left there are removed first.

    Of several wafers that is what all have left: the next job may have fewer.

    Args:
        parent: made where it is missing.

    Raises:
        StoreError: it cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            top = parent.parent if parent.name.startswith(_RANK) else parent
            for pattern in (f"{_PREFIX}*", f"{_RANK}*/{_PREFIX}*"):
                remove_abandoned(top, pattern)
            super().__init__(parent, _PREFIX)
        except OSError as error:
            raise _unusable(parent, str(error.strerror)) from error


def require_usable(folder: str) -> None:
    """Raises StoreError where a store's folder could not be made below a folder; writes nothing."""
    path = Path(os.path.abspath(folder))
    there = next(found for found in (path, *path.parents) if os.path.lexists(found))
    if not there.is_dir():
        raise _unusable(path, f"{there} is no folder")
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(path, str(error.strerror)) from error
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unusable(path, f"{there} cannot be written to")


def _unusable(folder: Path, received: str) -> StoreError:
    return StoreError(
        f"memoryx_dir {folder}: must be a folder that files can be written to. Received: "
        f"{received}. Give another folder or correct its permissions."
    )


def folder_of(rank: int, folder: str) -> str:
    """Where one of several wafers has its store's folder, below that of all."""
    return os.path.join(folder, f"{_RANK}{rank}")
