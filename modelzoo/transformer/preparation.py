"""Writes the TFRecords of TransformerTfRecordsProcessor from two texts with as many lines.

All pairs are written. The processor drops those that are empty or too long for a model.
"""

import functools

from cerebras_tf.errors import DataError
from cerebras_tf.user_files import open_regular
from modelzoo.common.data.preparation import documents, pipeline
from modelzoo.common.files import text_lines, text_sources
from modelzoo.transformer.vocabulary import load_joint_tokenizer

UNIT_LINES = 50_000  # pairs of one unit of work; a stopped run resumes at the next unit
BATCH_LINES = 1000  # pairs tokenized at a time


def prepare(source, target, output_dir, tokenizer_file, processes=1, on_progress=lambda size: None):
    """Writes a record for each pair of lines: int64 features source_ids and target_ids.

    Args:
        tokenizer_file: tokenizer.json of both languages, of cerebras-tf prepare vocab.

    Returns:
        The manifest of ``pipeline.prepare``.
    """
    tokenizer = load_joint_tokenizer(tokenizer_file)
    ends = [text_lines.line_ends(path, UNIT_LINES) for path in (source, target)]
    for path in (source, target):
        text_sources.require_text(path)
    (lines, source_places, source_end), (target_lines, target_places, target_end) = ends
    if lines != target_lines:
        raise DataError(
            f"{target}: must have as many lines as {source}. Received: {target_lines} and {lines}. "
            "Use two files with the same number of lines."
        )
    units = [
        [
            [source, *source_places[i : i + 2], source_end],
            [target, *target_places[i : i + 2], target_end],
            i * UNIT_LINES + 1,
        ]
        for i in range(len(source_places) - 1)
    ]
    settings = {
        "inputs": documents.describe([source, target]),
        "vocabulary": documents.describe([tokenizer_file]),
    }
    work = functools.partial(write_unit, tokenizer_file=tokenizer_file)
    return pipeline.prepare(
        units, work, output_dir, settings, processes, on_progress, tokenizer.facts
    )


def write_unit(unit, output, tokenizer_file):
    """Writes the records of a unit, see ``pipeline.prepare``; returns its counts."""
    source, target, first = unit
    tokenizer = load_joint_tokenizer(tokenizer_file)
    writer = output.writer()
    pairs = list(zip(_lines(source, first), _lines(target, first)))
    counts = {"pairs": len(pairs), "source_tokens": 0, "target_tokens": 0}
    for start in range(0, len(pairs), BATCH_LINES):
        sources, targets = zip(*pairs[start : start + BATCH_LINES])
        encoded = zip(tokenizer.encode_batch(list(sources)), tokenizer.encode_batch(list(targets)))
        for source_ids, target_ids in encoded:
            writer.write({"source_ids": source_ids, "target_ids": target_ids})
            counts["source_tokens"] += len(source_ids)
            counts["target_tokens"] += len(target_ids)
        output.advance(sum(len(line.encode("utf-8")) + 1 for line in sources))
    return counts


def _lines(part, first):
    path, start, stop, end = part
    with open_regular(path) as file:
        file.seek(start)
        data = file.read(stop - start)
    return text_lines.split(text_lines.decode(data, path, first), end)
