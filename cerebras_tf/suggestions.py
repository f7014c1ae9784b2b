"""What a user probably meant by a name that nothing has, or by a path where nothing is."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Optional


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> Optional[str]:
    """Returns the known word that is most like another, capitals aside; None if none is near.

    Args:
        cutoff: likeness that is near, from 0 to 1, as difflib measures it.
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `Did you mean ...?` with the nearest of the known words, or nothing if none is."""
    close = nearest(word, known)
    return f"Did you mean {close}?" if close else ""


def nearest_path(path: str | os.PathLike[str]) -> Optional[Path]:
    """Returns the existing path that is most like a missing one.

    Where a folder is misspelled, it is the path inside the folder that was meant, as far as that is
    there. None where something is at `path`, or nothing near it.
    """
    whole = missing = Path(path)
    if os.path.lexists(whole):
        return None
    while not os.path.lexists(missing.parent):
        missing = missing.parent
    try:
        close = nearest(missing.name, sorted(os.listdir(missing.parent)))
    except OSError:
        return None
    if close is None:
        return None
    found = missing.parent / close
    meant = found / whole.relative_to(missing)
    return meant if os.path.lexists(meant) else nearest_path(meant) or found


def did_you_mean_path(path: str | os.PathLike[str]) -> str:
    """Returns `Did you mean ...?` with the nearest path, or nothing; see `nearest_path`."""
    found = nearest_path(path)
    return f"Did you mean {found}?" if found else ""
