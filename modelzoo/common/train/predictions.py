"""Predicts row by row and writes the rows as npz and jsonl; without pickle, which runs code."""

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from cerebras_tf.api import counted, get_logger
from cerebras_tf.errors import DataError
from cerebras_tf.whole_file import replacing
from modelzoo.common.files.json_text import write_json_lines
from modelzoo.common.metrics.scores import drop_scores, write_scalars

NOT_LOGGED = ("-precision", "-recall")  # ends of the names of scores that are not logged


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Writes the predictions of `predict_steps` batches to ``model_dir/predict``."""
    import tensorflow.compat.v1 as tf

    rows = predicted_rows(estimator, inputs, params, checkpoint_path, use_cs)
    name = output_name("predictions", estimator, use_cs)
    count, npz, jsonl = write_predictions(rows, predict_folder(params), name)
    tf.logging.info("wrote %s to %s and %s", counted(count, "prediction"), npz, jsonl)


def predicted_rows(estimator, inputs, params, checkpoint_path, use_cs):
    """Yields the predictions of `predict_steps` batches: a dictionary of arrays an example.

    Logs where the data have more batches.
    """
    from modelzoo.common.train.estimator import CheckpointHook

    steps = params.runconfig.predict_steps or 1
    others: list[int] = []
    rows = estimator.predict(
        _first_batches(inputs.predict, steps, others),
        hooks=[CheckpointHook(checkpoint_path)],
        checkpoint_path=checkpoint_path,
        use_cs=use_cs,
    )
    with contextlib.closing(rows):
        count = 0
        for row in rows:
            count += 1
            yield row
    require_rows(count, params.predict_input)
    if others:
        log_skipped_batches(steps)


def _first_batches(input_fn, steps, others):
    """Returns an input function of the first batches; `others` gets a number if there are more."""
    import tensorflow.compat.v1 as tf

    def is_first(number):
        if number >= steps:
            others.append(number)
        return number < steps

    def wanted(number, _):
        found = tf.numpy_function(is_first, [number], tf.bool)
        found.set_shape([])
        return found

    def first(params):
        batches = input_fn(params).enumerate().take(steps + 1).filter(wanted)
        return batches.map(lambda _, features: features)

    return first


def log_skipped_batches(steps):
    """Logs that there are more batches than runconfig.predict_steps."""
    get_logger().info(
        "runconfig.predict_steps %d: only the first %d batches are predicted", steps, steps
    )


def require_rows(count, section):
    """Raises a DataError if `count`, the number of rows that predict_input `section` has, is 0."""
    if count:
        return
    paths = ", ".join(f"{key} {value}" for key, value in given_paths(section))
    skipped = getattr(section, "skip_steps", None)
    after = f" after skip_steps {skipped}. Lower it, or use" if skipped else ". Use"
    raise DataError(
        f"predict_input: must have at least one row. Received: none in {paths}{after} other data."
    )


def given_paths(section):
    """Yields key and value of the files and folders of data that an input section names."""
    for key in ("prompt_file", "predict_file", "text_file", "data_file", "data_dir"):
        for name in (key, f"src_{key}"):
            if value := getattr(section, name, None):
                yield name, value


def predict_folder(params):
    """Returns the folder that predict mode writes into, a Path."""
    return Path(params.runconfig.model_dir, "predict")


def output_name(kind, estimator, use_cs):
    """Returns the name of a file of predict mode, with where the model ran, without its suffix."""
    return f"{kind}_{'cs' if use_cs else 'tf'}_{estimator.config.task_id}"


def predicted_step(checkpoint_path):
    """Returns the global step of the checkpoint that predicted.

    It is taken from the name where a training at the same time has removed the checkpoint.
    """
    import tensorflow.compat.v1 as tf

    from cerebras_tf.api import CheckpointReader

    try:
        return int(tf.train.load_variable(checkpoint_path, "global_step"))
    except (tf.OpError, ValueError):
        if os.path.exists(f"{checkpoint_path}.index"):
            raise
        return CheckpointReader.step_of(checkpoint_path)


def keep_scores(folder, checkpoint_path, scores):
    """Writes the scores of predictions, see `write_scalars`.

    A step has the scores of its last predictions: if those have none, earlier ones are removed.
    """
    _keep_scores(folder, predicted_step(checkpoint_path), scores)


def _keep_scores(folder, step, scores):
    if scores:
        write_scalars(folder, step, scores)
    elif drop_scores(folder, step):
        text = "no references: removed the scores of earlier predictions of step %d"
        get_logger().info(text, step)


def write_scores(folder, checkpoint_path, scores):
    """Writes the scores of a checkpoint of TensorFlow; see `write_scores_of_step`."""
    write_scores_of_step(folder, predicted_step(checkpoint_path), scores)


def write_scores_of_step(folder, step, scores):
    """Writes scores as `keep_scores` does, and logs them without precision and recall."""
    _keep_scores(folder, step, scores)
    text = ", ".join(
        f"{name} {value:.2f}" for name, value in scores.items() if not name.endswith(NOT_LOGGED)
    )
    if text:
        get_logger().info("step %d: %s", step, text)


def write_predictions(predictions, folder, name):
    """Writes ``<name>.npz`` (arrays by name) and ``<name>.jsonl`` (one example a line).

    Each file is written completely or not at all.

    Args:
        predictions: iterable of dictionaries from name to array, one an example, all alike.

    Returns:
        The number of examples and the two paths.
    """
    rows = [{key: np.asarray(value) for key, value in row.items()} for row in predictions]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    jsonl, npz = folder / f"{name}.jsonl", folder / f"{name}.npz"
    columns: dict[str, Any] = {
        key: np.stack([row[key] for row in rows]) for key in (rows[0] if rows else ())
    }
    with replacing(npz) as partial:
        with open(partial, "wb") as file:
            np.savez(file, **columns)
        write_json_lines(jsonl, ({key: _plain(row[key]) for key in row} for row in rows))
    return len(rows), npz, jsonl


def _plain(value):
    value = value.tolist()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
