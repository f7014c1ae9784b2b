"""Writes predicted labels: all rows, and the files that GLUE's server takes."""

from pathlib import Path

from cerebras_tf.api import counted, get_logger
from cerebras_tf.errors import DataError
from modelzoo.common.fine_tuning.glue_files import INDEX_COLUMN, Row, find_files
from modelzoo.common.fine_tuning.texts import read_examples
from modelzoo.common.train import predictions


def write_predictions(section, rows, folder, name_of):
    """Writes ``predictions_*`` with a row for each example, and files for GLUE's server.

    See FineTuning.write_predictions.
    """
    sources = find_files(section.data_dir, "predict")  # those of evaluation if there are no others
    get_logger().info("predicting the rows of %s", ", ".join(sources))
    examples = read_examples(section, "predict")
    indices, names = submission_indices(examples), section.task.labels
    rows = [
        {**row, "index": indices[int(row["example_index"])], "label_name": names[int(row["label"])]}
        for row in rows
    ]
    count, npz, jsonl = predictions.write_predictions(rows, folder, name_of("predictions"))
    files = write_submissions(rows, examples, section.task.submission, folder)
    get_logger().info(
        "wrote %s to %s, %s, %s", counted(count, "prediction"), npz, jsonl, ", ".join(files)
    )


def submission_indices(examples):
    """Returns the index of each row for GLUE's server.

    It is that of the file, else the number of the row in its part, from 0.
    """
    indices: list[str] = []
    parts: dict[bool, dict[str, Row]] = {True: {}, False: {}}  # rows by index
    for row in examples:
        part = parts[row.is_matched]
        first = next(iter(part.values()), row)
        index = str(len(part)) if row.index is None else row.index
        mixed = (row.index is None) != (first.index is None)
        if mixed or not index or index in part:
            other = first if mixed else part.get(index)
            received = (
                f"{row.index!r}, and {other.index!r} in {other.path}:{other.line}"
                if other
                else "an empty one"
            )
            raise DataError(
                f"{row.path}:{row.line}: every row must have a unique index. Received: {received}. "
                f"Number the rows in the column {INDEX_COLUMN}, or remove the column. Predict "
                "files with overlapping indices separately."
            )
        part[index] = row
        indices.append(index)
    return indices


def write_submissions(rows, examples, names, folder):
    """Writes ``index<TAB>prediction`` files as GLUE's server expects them.

    Returns:
        The paths of the files.
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
