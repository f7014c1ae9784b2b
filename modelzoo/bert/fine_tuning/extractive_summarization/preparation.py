"""Writes the TFRecords that BertSumTfRecordsProcessor reads, from articles and their highlights.

A record has int64 input_ids, input_mask (1 for a token), segment_ids [S], cls_indices, labels [C],
highlight_ids [H], and float32 cls_weights [C].
"""

import numpy as np

from modelzoo.common.data.preparation import cnn_dailymail, input_files, pipeline
from modelzoo.common.fine_tuning.article_encoding import ArticleEncoder, pad_article
from modelzoo.common.fine_tuning.selection import greedy_oracle

UNIT_BYTES = 2 << 20  # input of one unit of work; a stopped run resumes at the next unit


def prepare(inputs, output_dir, settings, processes=1, on_progress=lambda amount: None):
    """Writes the records of articles.

    Returns the manifest of pipeline.prepare. Its counts have the number of articles that were
    skipped: with too few sentences, and without a sentence that shares a word with the highlights.
    """
    files = input_files.find_inputs(inputs, cnn_dailymail.SUFFIXES)
    facts = ArticleEncoder(settings).vocabulary
    return pipeline.prepare_files(
        files, UNIT_BYTES, write_unit, output_dir, settings, processes, on_progress, facts
    )


def write_unit(parts, output, settings):
    """Writes the records of ranges of files; see pipeline.prepare."""
    encoder, writer, places = ArticleEncoder(settings), output.writer(), settings.max_cls_tokens
    counts = dict.fromkeys(("articles", "skipped_too_short", "skipped_without_label"), 0)
    for path, start, end in parts:
        articles = cnn_dailymail.read_articles(path, start, end, output.advance)
        for paragraphs, highlights in articles:
            counts["articles"] += 1
            article = encoder.encode(paragraphs, highlights)
            picked = greedy_oracle(article.sentences, highlights)
            if len(article.sentences) < settings.min_sentences_per_sequence:
                counts["skipped_too_short"] += 1
            elif not picked:
                counts["skipped_without_label"] += 1
            else:
                labels = np.zeros(places, np.int32)
                labels[picked] = 1
                row = pad_article(article, settings.max_sequence_length, places, encoder.pad_id)
                highlight_ids = encoder.highlight_ids(article.highlights)
                writer.write({**row, "labels": labels, "highlight_ids": highlight_ids})
    return counts
