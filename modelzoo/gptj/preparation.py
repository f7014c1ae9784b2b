"""Turns articles and their abstracts into the records that fine-tune GPT-J for summarization.

A record is one sequence: inputs ``[EOS] article [SEP] abstract``, labels ``article [EOS] abstract
[EOS]``, so that each input's label is what follows it. ``input_mask`` is 1 at SEP and the abstract:
only the abstract and its end are learnt (the label [EOS] below the last word of the article stands
where the mask is 0). Both are filled up to S with the padding token. ``modelzoo/common`` reads and
tokenizes.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.data.preparation import cnn_dailymail, input_files, pipeline, records
from modelzoo.common.tokenizers import tokenizers

UNIT_BYTES = 16 << 20  # input of one unit of work, the step at which a run can be resumed
SPECIAL = 2  # special tokens of a record's inputs: EOS and SEP


@dataclass(frozen=True)
class SummarizationSettings:
    """How records are made.

    `eos_id` None is the tokenizer's own; `pad_id` None is the same as `eos_id`; `sep_id` None is
    the first number beyond the vocabulary, a new token that the model's vocabulary must have.
    """

    tokenizer_type: str
    vocab_file: Optional[str] = None
    encoder_file: Optional[str] = None
    max_seq_length: int = 1024
    truncate_article: bool = False
    eos_id: Optional[int] = None
    pad_id: Optional[int] = None
    sep_id: Optional[int] = None
    files_per_record: int = 50_000
    name: str = "examples"


class Assembler:
    """Makes records of articles and abstracts, and counts those it leaves out.

    Args:
        truncate_article: whether an article is cut rather than left out when it is too long.

    Attributes:
        counts: articles, and those skipped_empty, skipped_longer_abstract, skipped_too_long and
            truncated.
    """

    def __init__(self, length, eos_id, sep_id, pad_id, truncate_article=False):
        self._length = length
        self._eos_id = eos_id
        self._sep_id = sep_id
        self._pad_id = pad_id
        self._truncate_article = truncate_article
        names = ("articles", "skipped_empty", "skipped_longer_abstract", "skipped_too_long")
        self.counts = dict.fromkeys((*names, "truncated"), 0)

    def assemble(self, article, abstract):
        """Returns the record of an article [n] and its abstract [m], or None if it is left out."""
        self.counts["articles"] += 1
        limit = self._length - SPECIAL - len(abstract)
        if not len(article) or not len(abstract):
            return self._skip("skipped_empty")
        if len(abstract) > len(article):
            return self._skip("skipped_longer_abstract")
        if len(article) > limit:
            if not self._truncate_article or limit < 1:
                return self._skip("skipped_too_long")
            self.counts["truncated"] += 1
            article = article[:limit]
        ids = [[self._eos_id], article, [self._sep_id], abstract]
        labels = [article, [self._eos_id], abstract, [self._eos_id]]
        mask = np.zeros(self._length, np.int32)
        first = 1 + len(article)
        mask[first : first + 1 + len(abstract)] = 1
        return {"input_ids": self._fill(ids), "input_mask": mask, "labels": self._fill(labels)}

    def _skip(self, reason):
        self.counts[reason] += 1

    def _fill(self, parts):
        row = np.full(self._length, self._pad_id, np.int32)
        tokens = np.concatenate(parts)
        row[: len(tokens)] = tokens
        return row


@functools.lru_cache(maxsize=1)
def load_tokenizer(settings):
    """Loads the tokenizer of SummarizationSettings, once a process."""
    loaded = tokenizers.load_tokenizer(
        settings.tokenizer_type, settings.vocab_file, settings.encoder_file, settings.eos_id
    )
    tokenizers.require_tokens(loaded, "eos")
    return loaded


def special_ids(settings):
    """Returns the numbers of the tokens (EOS, SEP, PAD) of records made with these settings."""
    tokenizer = load_tokenizer(settings)
    for key, more in (("eos_id", 0), ("pad_id", 0), ("sep_id", 1)):
        tokenizers.check_number(key, getattr(settings, key), tokenizer.vocab_size + more)
    sep_id = tokenizer.vocab_size if settings.sep_id is None else settings.sep_id
    pad_id = tokenizer.eos_id if settings.pad_id is None else settings.pad_id
    return tokenizer.eos_id, sep_id, pad_id


def write_unit(parts, output, settings):
    """Writes the records of one unit.

    Returns:
        The counts of Assembler.
    """
    encode = load_tokenizer(settings).encode
    eos_id, sep_id, pad_id = special_ids(settings)
    assembler = Assembler(
        settings.max_seq_length, eos_id, sep_id, pad_id, settings.truncate_article
    )
    writer = output.writer(settings.name, settings.files_per_record)
    for path, start, end in parts:
        articles = cnn_dailymail.read_articles(path, start, end, output.advance)
        for paragraphs, highlights in articles:
            article, abstract = encode(" ".join(paragraphs)), encode("\n".join(highlights))
            record = assembler.assemble(article, abstract)
            if record is not None:
                writer.write(record)
    return assembler.counts


def prepare(inputs, output_dir, settings, processes=1, on_progress=lambda size: None):
    """Writes the records of `inputs` to `output_dir`, going on where an earlier run stopped.

    Returns the manifest: settings, eos_id, sep_id, pad_id, vocab_size (with SEP), counts, files.
    """
    if settings.max_seq_length < SPECIAL + 2:
        raise ConfigError(
            f"max_seq_length: must be at least {SPECIAL + 2}. Received: {settings.max_seq_length}. "
            "Raise it."
        )
    files = input_files.find_inputs(inputs, cnn_dailymail.SUFFIXES)
    eos_id, sep_id, pad_id = special_ids(settings)
    facts = load_tokenizer(settings).facts
    vocab_size = max(facts["vocab_size"], 1 + max(eos_id, sep_id, pad_id))
    facts |= {"eos_id": eos_id, "sep_id": sep_id, "pad_id": pad_id, "vocab_size": vocab_size}
    return pipeline.prepare_files(
        files, UNIT_BYTES, write_unit, output_dir, settings, processes, on_progress, facts
    )


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
            "--prompts: must be small enough to leave tokens for an article, of "
            f"{settings.max_seq_length}. Received: {max_new_tokens}. Lower it, or raise "
            "--max_seq_length."
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
            f"{', '.join(inputs)}: must contain at least one article with an abstract. Received: "
            "none. Add files."
        )
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    target = Path(output_dir) / "prompts.jsonl"
    records.check_same(target, text)
    return write_whole(target, text), len(rows)
