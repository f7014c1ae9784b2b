"""Writes the TFRecords that GlueTfRecordsProcessor reads, from tab-separated files."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.errors import ConfigError
from modelzoo.common.data.preparation import documents, pipeline
from modelzoo.common.fine_tuning.encoding import pad_tokens
from modelzoo.common.fine_tuning.glue_files import TASKS, PairEncoder, find_files, read_rows

ROWS_PER_UNIT = 20_000
BATCH_ROWS = 1_000  # rows tokenized at a time


@dataclass(frozen=True)
class Settings:
    """How records are made; the names are those of the command line.

    `task` is a data processor of glue_files.TASKS; the columns and labels are its own where None.
    """

    vocab_file: str
    task: str = "Sst2DataProcessor"
    do_lower_case: bool = True
    max_seq_length: int = 128
    text_columns: Optional[tuple] = None
    label_column: Optional[str] = None
    labels: Optional[tuple] = None

    @property
    def columns(self):
        """What the files hold, a glue_files.Task."""
        return TASKS[self.task].with_overrides(self.text_columns, self.label_column, self.labels)


def prepare(data_dir, use, output_dir, settings, processes=1, on_progress=lambda amount: None):
    """Writes the records of one use to a folder of its name.

    Args:
        data_dir: a folder with GLUE's files, or a file.
        use: ``train`` or ``eval``, whose rows have labels.

    Returns:
        The manifest of pipeline.prepare.
    """
    for name, fault in settings.columns.faults(settings.max_seq_length):
        name = {"length": "max_seq_length"}.get(name, name)
        raise ConfigError(f"--{name}: {fault} Received: {getattr(settings, name)}.")
    files = find_files(data_dir, use)
    counts = {path: len(read_rows(path, settings.columns, True)) for path in files}
    units = [
        (path, start, start + ROWS_PER_UNIT)
        for path, count in counts.items()
        for start in range(0, count, ROWS_PER_UNIT)
    ]
    described = documents.describe_settings(settings, files, labels=settings.columns.labels)
    encoder = PairEncoder(settings.vocab_file, settings.do_lower_case, settings.max_seq_length)
    return pipeline.prepare(
        units,
        functools.partial(write_unit, settings=settings),
        os.path.join(output_dir, use),
        described,
        processes,
        on_progress,
        encoder.vocabulary,
    )


def write_unit(unit, output, settings):
    """Writes the records of some rows of a file; see pipeline.prepare."""
    path, start, stop = unit
    length = settings.max_seq_length
    encoder = PairEncoder(settings.vocab_file, settings.do_lower_case, length)
    writer = output.writer()
    rows = read_rows(path, settings.columns, True)[start:stop]
    for first in range(0, len(rows), BATCH_ROWS):
        batch = rows[first : first + BATCH_ROWS]
        for row, example in zip(batch, encoder.encode([row.texts for row in batch])):
            labels = {"label": np.array([row.label]), "is_matched": np.array([int(row.is_matched)])}
            writer.write({**pad_tokens(example, length, encoder.pad_id), **labels})
        output.advance(len(batch))
    return {"rows": len(rows)}
