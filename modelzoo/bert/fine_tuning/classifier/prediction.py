"""Predict mode of classifiers: rows with their labels, and the files that GLUE's server takes.

Scores come from evaluation.
"""

from __future__ import annotations

from pathlib import Path

import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.classifier.data import read_examples
from modelzoo.bert.fine_tuning.classifier.tasks import find_files
from modelzoo.common import predictions


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Writes the predictions of `predict_steps` batches to ``model_dir/predict``.

    Args:
        estimator: CerebrasEstimator of the model.
        inputs: InputFunctions of the model.
        params: Params.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.
    """
    section = params.predict_input
    sources = find_files(section.data_dir, "predict")  # maybe those of evaluation
    tf.logging.info("predicting the rows of %s", ", ".join(sources))
    labels = section.task.labels
    found = predictions.predicted_rows(estimator, inputs, params, checkpoint_path, use_cs)
    rows = [{**row, "label_name": labels[int(row["label"])]} for row in found]
    folder = predictions.predict_folder(params)
    name = predictions.output_name("predictions", estimator, use_cs)
    count, npz, jsonl = predictions.write_predictions(rows, folder, name)
    files = write_submissions(rows, section, folder)
    tf.logging.info("wrote %d predictions to %s, %s, %s", count, npz, jsonl, ", ".join(files))


def write_submissions(rows, section, folder):
    """Writes ``index<TAB>prediction`` files under the names that GLUE's server expects.

    Args:
        rows: predictions with ``example_index`` and ``label_name``.
        section: ClassifierInput they were read by.
        folder: where the files go.

    Returns:
        Their paths.
    """
    examples = read_examples(section, "predict")
    first: dict[bool, int] = {}  # of each part, the index at which it begins
    for index, example in enumerate(examples):
        first.setdefault(example.is_matched, index)
    lines: dict[bool, list[str]] = {}
    for row in rows:
        index = int(row["example_index"])
        is_matched = examples[index].is_matched
        lines.setdefault(is_matched, []).append(f"{index - first[is_matched]}\t{row['label_name']}")
    paths = []
    for is_matched, part in sorted(lines.items()):
        paths.append(str(folder / section.task.submission[is_matched]))
        text = "\n".join(["index\tprediction", *part]) + "\n"
        Path(paths[-1]).write_text(text, encoding="utf-8")
    return paths
