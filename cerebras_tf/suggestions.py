"""Suggests what a user probably meant by an unknown name or a missing path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Optional


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> Optional[str]:
    """Returns the known word most similar to another, ignoring case; None if none is similar.

    Args:
        cutoff: minimum similarity, from 0 to 1, as in difflib.
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `Did you mean ...?` with the most similar known word, or ""."""
    close = nearest(word, known)
    return f"Did you mean {close}?" if close else ""


def nearest_path(path: str | os.PathLike[str]) -> Optional[Path]:
    """Returns the existing path that is most like a missing one.

    If a folder is misspelled, it is the path inside the folder that was meant, as far as it exists.
    None if `path` exists, or nothing is similar.
    """
    whole = missing = Path(path)
    if os.path.lexists(whole):
        return None
    while not os.path.lexists(missing.parent):
        missing = missing.parent
    try:
        names = sorted(os.listdir(missing.parent))
    except OSError:
        return None
    # An ending in common makes no names similar.
    stems = {name.removesuffix(missing.suffix): name for name in names}
    close = nearest(missing.name, names, cutoff=0.85) or stems.get(
        nearest(missing.stem, stems, cutoff=0.7) or ""
    )
    if close is None:
        return None
    found = missing.parent / close
    meant = found / whole.relative_to(missing)
    return meant if os.path.lexists(meant) else nearest_path(meant) or found


def did_you_mean_path(path: str | os.PathLike[str]) -> str:
    """Returns `Did you mean ...?` with the most similar path, or ""; see `nearest_path`."""
    found = nearest_path(path)
    return f"Did you mean {found}?" if found else ""
