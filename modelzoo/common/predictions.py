"""Predicts row by row and writes the rows as npz and jsonl. Deliberately uses no pickle."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Writes the predictions of `predict_steps` batches to ``model_dir/predict``.

    Args:
        estimator: CerebrasEstimator of the model.
        inputs: InputFunctions of the model.
        params: the model's parameters.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.
    """
    import tensorflow.compat.v1 as tf

    runconfig = params.runconfig
    rows = predicted_rows(estimator, inputs, checkpoint_path, use_cs)
    rows = itertools.islice(rows, runconfig.predict_steps * params.predict_input.batch_size)
    name = f"predictions_{'cs' if use_cs else 'tf'}_{estimator.config.task_id}"
    count, npz, jsonl = write_predictions(rows, os.path.join(runconfig.model_dir, "predict"), name)
    tf.logging.info("wrote %d predictions to %s and %s", count, npz, jsonl)


def predicted_rows(estimator, inputs, checkpoint_path, use_cs):
    """Yields the predictions of the whole predict_input: a dictionary of arrays an example."""
    from modelzoo.common.estimator import CheckpointHook

    return estimator.predict(
        inputs.predict,
        hooks=[CheckpointHook(checkpoint_path)],
        checkpoint_path=checkpoint_path,
        use_cs=use_cs,
    )


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
