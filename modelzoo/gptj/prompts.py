"""Writes prompts for summaries of articles, which a fine-tuned GPT-J completes.

A prompt is the beginning of a record of ``preparation.py``: ``[EOS] article [SEP]``.
"""

import json
import os
from pathlib import Path

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.data.preparation import cnn_dailymail, input_files, records
from modelzoo.gptj.preparation import SPECIAL, load_tokenizer, special_ids


def write_prompts(inputs, output_dir, settings, max_new_tokens, on_progress=lambda size: None):
    """Writes ``prompts.jsonl``.

    A row has ``prompt_tokens``, and ``reference``, the true summary for the scores of predict mode.

    Args:
        settings: SummarizationSettings. Articles are truncated by `max_new_tokens`.

    Returns:
        The path, and the number of prompts.
    """
    limit = settings.max_seq_length - SPECIAL - max_new_tokens
    if limit < 1:
        raise ConfigError(
            f"--prompts: must leave tokens for an article out of {settings.max_seq_length}. "
            f"Received: {max_new_tokens}. Lower it, or raise --max_seq_length."
        )
    encode = load_tokenizer(settings).encode
    eos_id, sep_id, _ = special_ids(settings)
    rows = []
    for path in input_files.find_inputs(inputs, cnn_dailymail.SUFFIXES):
        end = os.path.getsize(path)
        for paragraphs, highlights in cnn_dailymail.read_articles(path, 0, end, on_progress):
            article = encode(" ".join(paragraphs))[:limit].tolist()
            if article and highlights:
                tokens = [eos_id, *article, sep_id]
                rows.append({"prompt_tokens": tokens, "reference": "\n".join(highlights)})
    if not rows:
        raise DataError(
            f"{', '.join(inputs)}: must hold at least one article with its abstract. Received: "
            "none. Add files."
        )
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    target = Path(output_dir) / "prompts.jsonl"
    records.check_same(target, text)
    return write_whole(target, text), len(rows)
