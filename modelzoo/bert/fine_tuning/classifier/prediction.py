"""Predict mode of classifiers: rows with their labels, and the files that GLUE's server takes.

Scores come from evaluation.
"""

from __future__ import annotations

from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import DataError
from modelzoo.bert.fine_tuning.classifier.data import read_examples
from modelzoo.bert.fine_tuning.classifier.tasks import INDEX_COLUMN, Row, find_files
from modelzoo.common.train import predictions


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Writes the predictions of `predict_steps` batches to ``model_dir/predict``.

    Args:
        estimator: CerebrasEstimator of the model.
        inputs: InputFunctions of the model.
        params: Params.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.

    Raises:
        DataError: if a row of the files is bad, or has no index of its own.
    """
    section = params.predict_input
    sources = find_files(section.data_dir, "predict")  # maybe those of evaluation
    tf.logging.info("predicting the rows of %s", ", ".join(sources))
    examples = read_examples(section, "predict")
    indices = submission_indices(examples)
    rows = []
    for row in predictions.predicted_rows(estimator, inputs, params, checkpoint_path, use_cs):
        name = section.task.labels[int(row["label"])]
        rows.append({**row, "index": indices[int(row["example_index"])], "label_name": name})
    folder = predictions.predict_folder(params)
    name = predictions.output_name("predictions", estimator, use_cs)
    count, npz, jsonl = predictions.write_predictions(rows, folder, name)
    files = write_submissions(rows, examples, section.task.submission, folder)
    tf.logging.info("wrote %d predictions to %s, %s, %s", count, npz, jsonl, ", ".join(files))


def submission_indices(examples):
    """Returns by which index GLUE's server knows each row.

    Args:
        examples: every tasks.Row of the files, in order.

    Returns:
        Of each row the index that its file gives; else its place in its part, from 0.

    Raises:
        DataError: if two rows of a part have one index, one has an empty one, or one file of a part
            has indices and another has none.
    """
    indices: list[str] = []
    parts: dict[bool, dict[str, Row]] = {True: {}, False: {}}  # rows by index
    for row in examples:
        part = parts[row.is_matched]
        first = next(iter(part.values()), row)
        if (row.index is None) != (first.index is None):
            having, other = (first, row) if row.index is None else (row, first)
            raise DataError(
                f"{other.path}: files that are predicted together must all have the column "
                f"{INDEX_COLUMN}, or none. Received: {having.path}, which has it. Predict one file "
                "at a time."
            )
        index = str(len(part)) if row.index is None else row.index
        if not index or index in part:
            raise _repeated(row, part.get(index))
        part[index] = row
        indices.append(index)
    return indices


def _repeated(row, other):
    """The error of a row whose index is empty, or that of another."""
    received, cure = "an empty one", f"Number the rows in the column {INDEX_COLUMN}"
    if other is not None:
        received = f"{row.index!r}, as {other.path}:{other.line} has"
        if other.path != row.path:
            cure = "Predict one file at a time"
    return DataError(
        f"{row.path}:{row.line}: every row must have an index of its own. Received: {received}. "
        f"{cure}, or remove the column."
    )


def write_submissions(rows, examples, names, folder):
    """Writes ``index<TAB>prediction`` files as GLUE's server expects them.

    Args:
        rows: predictions with ``example_index``, ``index`` and ``label_name``.
        examples: every tasks.Row of the files.
        names: of the files, by whether the part is matched.
        folder: where the files go.

    Returns:
        Their paths.
    """
    lines: dict[bool, list[str]] = {}
    for row in rows:
        is_matched = examples[int(row["example_index"])].is_matched
        lines.setdefault(is_matched, []).append(f"{row['index']}\t{row['label_name']}")
    paths = []
    for is_matched, part in sorted(lines.items()):
        paths.append(str(folder / names[is_matched]))
        text = "\n".join(["index\tprediction", *part]) + "\n"
        Path(paths[-1]).write_text(text, encoding="utf-8")
    return paths
