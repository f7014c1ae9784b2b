"""Reads tab-separated files of classification tasks, such as GLUE's (Wang et al. 2018), as tokens.

An example is [CLS] first [SEP], and for pairs second [SEP]. Source of the layout and of the
truncation: Devlin et al. (2018). S is the sequence length.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.api import counted
from cerebras_tf.errors import DataError
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.files.text_lines import columns as columns_of
from modelzoo.common.files.text_lines import read_lines, warn_of_quotes
from modelzoo.common.fine_tuning.encoding import Encoder

UNLABELED = -1
INDEX_COLUMN = "index"  # GLUE's server identifies a row by it
# Files of a folder by use. The first group of which there is any is read.
FILES = {
    "train": (("train.tsv",),),
    "eval": (("dev.tsv",), ("dev_matched.tsv", "dev_mismatched.tsv")),
    "predict": (
        ("test.tsv",),
        ("test_matched.tsv", "test_mismatched.tsv"),
        ("dev.tsv",),
        ("dev_matched.tsv", "dev_mismatched.tsv"),
    ),
}
MAX_SHOWN = 300  # characters of a header in an error
MISMATCHED = "mismatched"  # in the file name of MNLI's mismatched part


@dataclass(frozen=True)
class Task:
    """Columns and labels of a task.

    Attributes:
        text_columns: one column, or two for pairs.
        has_parts: whether there are a matched and a mismatched part.
        submission: names of the files for GLUE's server, of the mismatched and the matched part.
    """

    text_columns: tuple
    label_column: str
    labels: tuple
    has_parts: bool = False
    submission: tuple = ("mismatched_predictions.tsv", "predictions.tsv")

    def faults(self, length):
        """Yields what is wrong with the columns, the labels, or a sequence length for them.

        Args:
            length: S, which must hold [CLS], and of each text a token and [SEP].

        Yields:
            The name of the value, ``text_columns``, ``length`` or ``labels``, and a sentence.
        """
        count = len(self.text_columns)
        if count not in (1, 2):
            yield "text_columns", "must have one column, or two for pairs."
        elif count == 2 and len(set(self.text_columns)) == 1:
            yield (
                "text_columns",
                ("must have two different columns. Use one column for single texts."),
            )
        elif length < 1 + 2 * count:
            layout = "[CLS] a [SEP] b [SEP]" if count == 2 else "[CLS] a [SEP]"
            yield "length", f"must be at least {1 + 2 * count}, for {layout}. Raise it."
        if len(set(self.labels)) != len(self.labels):
            yield "labels", "must be distinct."

    def with_overrides(self, text_columns, label_column, labels):
        """Returns this task with those values that are not None."""
        own = {"text_columns": text_columns, "label_column": label_column, "labels": labels}
        return dataclasses.replace(self, **{k: v for k, v in own.items() if v is not None})


TASKS = {
    "Sst2DataProcessor": Task(
        ("sentence",), "label", ("0", "1"), submission=("SST-2.tsv", "SST-2.tsv")
    ),
    "MnliDataProcessor": Task(
        ("sentence1", "sentence2"),
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        has_parts=True,
        submission=("MNLI-mm.tsv", "MNLI-m.tsv"),
    ),
}
# For a section that gives columns and labels itself.
OTHER_FILES = Task(("sentence",), "label", ("0", "1"))


@dataclass(frozen=True)
class Row:
    """One example of a file.

    Attributes:
        texts: one text, or two.
        label: number of the label, UNLABELED if the file has none.
        is_matched: False for a row of MNLI's mismatched part.
        index: value of the column INDEX_COLUMN, None if the file has none.
    """

    texts: tuple
    label: int
    is_matched: bool
    index: Optional[str] = None
    path: str = ""
    line: int = 0


def find_files(data_dir, use, log=lambda line: None):
    """Lists the files to read.

    Args:
        use: ``train``, ``eval`` or ``predict``.
        log: called with a line for each folder that has only one of two parts.

    Returns:
        Paths.
    """
    found = []
    for source in [data_dir] if isinstance(data_dir, str) else data_dir:
        if os.path.isfile(source):
            found.append(source)
            continue
        groups = [[os.path.join(source, name) for name in group] for group in FILES[use]]
        groups = [group for group in groups if any(map(os.path.isfile, group))]
        if not groups:
            names = " or ".join(name for group in FILES[use] for name in group)
            state = "a folder without" if os.path.isdir(source) else "neither folder nor file"
            advice = advice_on_path(source)
            raise DataError(
                f"data_dir: must be a .tsv file, or a folder with {names}. Received: {source!r}, "
                f"{state}. {advice}"
            )
        present = [path for path in groups[0] if os.path.isfile(path)]
        for path in set(groups[0]) - set(present):
            log(f"{source} has no {os.path.basename(path)}: only {', '.join(present)} is read")
        found += present
    return found


def read_rows(path, task, needs_labels):
    """Reads a file with a header line; columns are found by their names.

    Args:
        needs_labels: whether every row must have a label. If not, the column may be missing.

    Returns:
        A list of Row.
    """
    is_matched = MISMATCHED not in os.path.basename(path)
    rows = []
    for number, columns, values in _read_lines(path, task, needs_labels):
        texts = tuple(values[columns[name]].strip() for name in task.text_columns)
        for name, text in zip(task.text_columns, texts):
            if not text:
                raise DataError(
                    f"{path}:{number}: {name} must have text. Received: none. Fix or remove the "
                    "line."
                )
        label = UNLABELED
        if task.label_column in columns:
            received = values[columns[task.label_column]].strip()
            if received in task.labels:
                label = task.labels.index(received)
            elif needs_labels:
                raise DataError(
                    f"{path}:{number}: {task.label_column} must be one of "
                    f"{', '.join(task.labels)}. Received: {received!r}. Fix or remove the line, or "
                    "set labels to those of the file."
                )
        index = values[columns[INDEX_COLUMN]].strip() if INDEX_COLUMN in columns else None
        rows.append(Row(texts, label, is_matched, index, path, number))
    if not rows:
        raise DataError(
            f"{path}: must contain rows after its header. Received: none. Copy it again."
        )
    return rows


def _read_lines(path, task, needs_labels):
    """Yields the line's number, the indices of columns by name, and the values of the line."""
    columns, width = None, 0
    lines = enumerate(read_lines(path, "Check its rights."), start=1)
    rows = ((number, columns_of(line, "\t")) for number, line in lines)
    for number, values in warn_of_quotes(rows, path):
        if columns is None:
            columns, width = _header(path, values, task, needs_labels), len(values)
        elif len(values) != width:
            raise DataError(
                f"{path}:{number}: must have {width} columns, like the header. Received: "
                f"{len(values)}. Fix or remove the line."
            )
        else:
            yield number, columns, values


def _header(path, names, task, needs_labels):
    names = [name.strip() for name in names]
    columns = {name: place for place, name in enumerate(names)}
    wanted = [*task.text_columns, *([task.label_column] if needs_labels else [])]
    used = dict.fromkeys((*wanted, task.label_column, *([] if needs_labels else [INDEX_COLUMN])))
    twice = [name for name in used if names.count(name) > 1]
    if twice:
        raise DataError(
            f"{path}:1: the columns of the header must be distinct. Received: {', '.join(twice)} "
            f"{names.count(twice[0])} times among {_shown(names)}. Rename or remove the others."
        )
    missing = [name for name in wanted if name not in columns]
    if missing:
        advice = "Set text_columns and label_column, or rename the columns."
        if len(names) == 1:
            advice = "Separate columns by tabs, as in TSV."
        raise DataError(
            f"{path}:1: the header must have the columns {', '.join(wanted)}. Received: "
            f"{counted(len(names), 'column')}, {_shown(names)}. {advice}"
        )
    return columns


def _shown(names):
    text = ", ".join(names)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


@dataclass(frozen=True)
class Encoded:
    """The tokens of one example.

    Attributes:
        ids: [n] int32, n at most S.
        first: number of tokens in segment 0. The others are in segment 1.
    """

    ids: np.ndarray
    first: int

    @property
    def segments(self):
        """The segment of each token, [n] int32."""
        return (np.arange(len(self.ids)) >= self.first).astype(np.int32)


class PairEncoder(Encoder):
    """Encodes examples of one or two texts."""

    def __init__(self, vocab_file, do_lower, max_length):
        super().__init__(vocab_file, do_lower)
        self._max_length = max_length

    def encode(self, texts):
        """Encodes examples; returns a list of Encoded."""
        columns = [self.tokenizer.encode_batch(list(column)) for column in zip(*texts)]
        return [self._join(example) for example in zip(*columns)]

    def _join(self, texts):
        cls, sep = self.tokenizer.cls_id, self.tokenizer.sep_id
        kept = truncate_longest(list(map(len, texts)), self._max_length - 1 - len(texts))
        ids = [np.array([cls], np.int32)]
        for tokens, length in zip(texts, kept):
            ids += [tokens[:length], np.array([sep], np.int32)]
        return Encoded(np.concatenate(ids), 2 + kept[0])


def truncate_longest(lengths, limit):
    """Shortens the longest of several texts, token by token, until all fit.

    Of two that are equally long the later one is shortened.

    Returns:
        The lengths to keep.
    """
    lengths = list(lengths)
    while sum(lengths) > limit:
        longest = max(lengths)
        lengths[len(lengths) - 1 - lengths[::-1].index(longest)] -= 1
    return lengths
