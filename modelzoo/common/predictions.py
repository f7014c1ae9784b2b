"""Writes predictions as npz and jsonl. Deliberately needs no TensorFlow and no pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np


def write_predictions(predictions, folder, name):
    """Writes ``<name>.npz`` (arrays by name) and ``<name>.jsonl`` (one example a line).

    Both appear whole or not at all.

    Args:
        predictions: iterable of dictionaries from name to array, one an example, all alike.
        folder: made if absent.
        name: file name without its end.

    Returns:
        The number of examples and the two paths.
    """
    rows = [{key: np.asarray(value) for key, value in row.items()} for row in predictions]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    jsonl, npz = folder / f"{name}.jsonl", folder / f"{name}.npz"
    partial_jsonl, partial_npz = (folder / f".{p.name}.{os.getpid()}" for p in (jsonl, npz))
    with open(partial_jsonl, "w", encoding="utf-8") as file:
        for row in rows:
            plain = {key: _plain(value) for key, value in row.items()}
            file.write(json.dumps(plain, ensure_ascii=False) + "\n")
    columns = {key: np.stack([row[key] for row in rows]) for key in (rows[0] if rows else ())}
    with open(partial_npz, "wb") as file:
        np.savez(file, **columns)
    partial_jsonl.replace(jsonl)
    partial_npz.replace(npz)
    return len(rows), npz, jsonl


def _plain(value):
    value = value.tolist()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
