"""Makes records of conversations, and shows which tokens the loss counts."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from modelzoo.common.data.preparation import documents, pipeline
from modelzoo.common.files.json_text import read_json_lines
from modelzoo.common.tokenizers.tokenizers import vocabulary_facts
from modelzoo.hugging_face import chat


@dataclass(frozen=True)
class ChatSettings:
    """How records are made; see ChatInput of params.py."""

    tokenizer: str
    chat_template: Optional[str] = None
    max_seq_length: int = 2048
    no_packing: bool = False
    files_per_record: int = 50_000
    name: str = "examples"

    @property
    def vocab_file(self):
        """The file that the tokens follow from, if there is one."""
        path = Path(self.tokenizer, "tokenizer.json")
        return str(path) if path.is_file() else None

    def encoder(self):
        """Returns the ChatEncoder."""
        template = chat.read_template(self.chat_template)
        return chat.ChatEncoder(chat.load_tokenizer(self.tokenizer), template)


def show(inputs, settings, count):
    """Yields the tokens of the first conversations with their weights, as text."""
    encoder = settings.encoder()
    rows = itertools.chain.from_iterable(map(read_json_lines, chat.find_chat_files(inputs)))
    for where, found in chat.encoded(encoder, itertools.islice(rows, count)):
        for example in found:
            counted = int(example.weights.sum())
            yield f"{where}: {len(example.ids)} tokens, {counted} with a weight"
            yield encoder.show(example)


def prepare(inputs, output_dir, settings):
    """Writes TFRecords with ``input_ids``, ``labels``, ``input_mask`` and ``position_ids``.

    The mask is 1 where a label has a weight. Positions restart with each conversation of a record.
    GptTfRecordsProcessor of a transformers model reads them.

    Returns:
        The manifest of pipeline.prepare.
    """
    files = [str(path) for path in chat.find_chat_files(inputs)]
    encoder = settings.encoder()
    work = functools.partial(_write, encoder=encoder, settings=settings)
    described = documents.describe_settings(settings, files)
    facts = vocabulary_facts(encoder.vocabulary)
    return pipeline.prepare([files], work, output_dir, described, facts=facts)


def _write(files, output, encoder, settings):
    size = settings.max_seq_length
    examples = chat.read_examples(encoder, files, size)
    rows = [[number] for number in range(len(examples))]
    if not settings.no_packing:
        rows = chat.pack([len(example.ids) for example in examples], size)
    writer = output.writer(settings.name, settings.files_per_record)
    for row in rows:
        found = chat.packed_row([examples[number] for number in row], size, encoder.pad_id)
        mask = found["labels"] != chat.IGNORED
        labels = np.where(mask, found["labels"], encoder.pad_id)
        writer.write({**found, "labels": labels, "input_mask": mask.astype(np.int32)})
    counted = sum(int(example.weights.sum()) for example in examples)
    tokens = sum(len(example.ids) for example in examples)
    return {"examples": len(examples), "tokens": tokens, "weighted_tokens": counted}
