"""Turns articles into prompts for their abstracts, as fine-tuned GPT-J continues them.

A prompt is the beginning of a record of ``preparation.py``: ``[EOS] article [SEP]``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.data.preparation import cnn_dailymail, input_files, records
from modelzoo.gptj.preparation import MARKS, load_tokenizer, special_ids


def write_prompts(inputs, output_dir, settings, max_new_tokens, on_progress=lambda size: None):
    """Writes ``prompts.jsonl``, whole or not at all.

    A row has ``prompt_tokens``, what the model continues, and ``reference``, the abstract, by which
    predict mode scores what it wrote.

    Args:
        inputs: files and folders, see cnn_dailymail.
        output_dir: made if absent.
        settings: SummarizationSettings; articles are cut to leave room for the abstract.
        max_new_tokens: tokens of the longest abstract to be written.
        on_progress: called with the bytes of the input files done since the last call.

    Returns:
        The path, and the number of prompts.

    Raises:
        DataError: names the file and line of a bad row, or says that there is no article.
        ConfigError: if no room is left, a tokenizer file is wrong, or other prompts are there.
    """
    room = settings.max_seq_length - MARKS - max_new_tokens
    if room < 1:
        raise ConfigError(
            f"--prompts: must leave room for an article in {settings.max_seq_length} tokens. "
            f"Received: {max_new_tokens}. Lower it, or raise --max_seq_length."
        )
    encode = load_tokenizer(settings).encode
    eos_id, sep_id, _ = special_ids(settings)
    rows = []
    for path in input_files.find_inputs(inputs, cnn_dailymail.SUFFIXES):
        end = os.path.getsize(path)
        for paragraphs, highlights in cnn_dailymail.read_articles(path, 0, end, on_progress):
            article = encode(" ".join(paragraphs))[:room].tolist()
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
