"""Writes the TFRecords that QuestionAnsweringDataProcessor reads, from SQuAD's json.

A record has int64 input_ids, input_mask (1 for a token), segment_ids [S], start_positions and
end_positions [1].
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.errors import DataError
from modelzoo.common.data.preparation import documents, pipeline
from modelzoo.common.fine_tuning.encoding import pad_tokens
from modelzoo.common.fine_tuning.question_encoding import (
    EncodingSettings,
    WindowEncoder,
    answer_positions,
    token_span,
)
from modelzoo.common.fine_tuning.squad_files import chosen_articles, read_articles

ARTICLES_PER_UNIT = 8
COUNTS = ("questions", "skipped_answers", "without_answer", "windows_without_answer")


@dataclass(frozen=True)
class Settings(EncodingSettings):
    """How records are made; the names are those of the command line.

    With `version_2_with_negative` questions without an answer are kept, and their positions are
    those of [CLS]. Otherwise such a question is an error.
    """

    version_2_with_negative: bool = False


def prepare(
    input_file,
    output_dir,
    settings,
    processes=1,
    on_progress=lambda amount: None,
    articles: Optional[tuple[int, int]] = None,
):
    """Writes the records of a file.

    Args:
        input_file: SQuAD json with answers. The first answer of each question is used.
        articles: the first article, counted from 0, and one past the last; None for all.

    Returns:
        The manifest of pipeline.prepare. Its counts have the number of questions that were skipped
        because their answer is not at answer_start. Each of them is reported on stderr.
    """
    first, last = chosen_articles(input_file, articles)
    described = documents.describe_settings(settings, [input_file], articles=[first, last])
    return pipeline.prepare(
        [
            (input_file, start, min(start + ARTICLES_PER_UNIT, last))
            for start in range(first, last, ARTICLES_PER_UNIT)
        ],
        functools.partial(write_unit, settings=settings),
        output_dir,
        described,
        processes,
        on_progress,
        WindowEncoder(settings).vocabulary,
    )


def write_unit(unit, output, settings):
    """Writes the records of some articles; see pipeline.prepare."""
    path, first, last = unit
    encoder, writer = WindowEncoder(settings), output.writer()
    counts = dict.fromkeys(COUNTS, 0)
    for paragraph in (p for article in read_articles(path)[first:last] for p in article):
        context = encoder.context(paragraph.context)
        for question in paragraph.questions:
            output.advance(1)
            counts["questions"] += 1
            where = f"{path}: article {paragraph.article!r}, question {question.id}"
            span = None
            if question.answers:
                span = answer_span(paragraph, question, context, where)
                if span is None:
                    counts["skipped_answers"] += 1
                    continue
            elif settings.version_2_with_negative:
                counts["without_answer"] += 1
            else:
                raise DataError(
                    f"{where}: must have an answer. Received: none. Use --version_2_with_negative "
                    "for files of version 2.0."
                )
            for window in encoder.windows(question.text, context):
                positions = answer_positions(window, span)
                counts["windows_without_answer"] += span is not None and positions == (0, 0)
                tokens = pad_tokens(window, settings.max_seq_length, encoder.pad_id)
                start, end = (np.array([position]) for position in positions)
                writer.write({**tokens, "start_positions": start, "end_positions": end})
    return counts


def answer_span(paragraph, question, context, where):
    """Returns the first and last token of a question's first answer.

    If the answer is not at its answer_start, it prints a line to stderr and returns None.
    """
    text, start = question.answers[0]
    found = paragraph.context[max(start, 0) : max(start, 0) + len(text)]
    if text and start >= 0 and found == text:
        span = token_span(context, start, start + len(text))
        if span is not None:
            return span
    print(
        f"{where}: its answer must be at answer_start. Received: {text!r}, but the text at {start} "
        f"is {found!r}. The question is skipped.",
        file=sys.stderr,
    )
    return None
