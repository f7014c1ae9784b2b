"""Turns documents into the TFRecords that GptTfRecordsProcessor reads.

It deliberately leaves reading and tokenizing to ``modelzoo/common/preparation``. S is the sequence
length. A record's inputs are S tokens, its labels the same one token later; the next record goes
on where the labels ended, so every token but the first is predicted once.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from modelzoo.common.preparation import documents, records, tokenizer

GROUP_BYTES = 256 << 20  # input of one unit of work, the step at which a run can be resumed
BATCH_CHARACTERS = 1 << 19  # text sent to a worker process at a time


@dataclass(frozen=True)
class PreparationSettings:
    """How records are made.

    `eos_id` None is the tokenizer's own, `pad_id` None the same as `eos_id`.
    """

    tokenizer_type: str
    vocab_file: Optional[str] = None
    encoder_file: Optional[str] = None
    max_seq_length: int = 2048
    eos_id: Optional[int] = None
    pad_id: Optional[int] = None
    text_key: str = "text"
    files_per_record: int = 50_000
    write_remainder: bool = False
    output_name: str = "examples"


class Packer:
    """Cuts a stream of tokens into records of S tokens.

    Args:
        length: S.
        pad_id: fills the last record.
    """

    def __init__(self, length, pad_id):
        self._length = length
        self._pad_id = pad_id
        self._parts = []
        self._waiting = 0

    def add(self, tokens):
        """Takes tokens and yields the records they complete."""
        self._parts.append(tokens)
        self._waiting += len(tokens)
        if self._waiting <= self._length:
            return
        row = np.concatenate(self._parts)
        start = 0
        while len(row) - start > self._length:
            yield self._record(row[start : start + self._length + 1])
            start += self._length
        self._parts, self._waiting = [row[start:]], len(row) - start

    def remainder(self):
        """Yields the last record, padded and masked, if any token is left to predict."""
        row = np.concatenate(self._parts) if self._parts else np.zeros(0, np.int32)
        if len(row) > 1:
            yield self._record(row)

    def _record(self, row):
        real = len(row) - 1
        padded = np.full(self._length + 1, self._pad_id, np.int64)
        padded[: len(row)] = row
        labels = padded[1:].copy()
        ids = padded[:-1].copy()
        ids[real:] = self._pad_id
        mask = (np.arange(self._length) < real).astype(np.int64)
        return {"input_ids": ids, "input_mask": mask, "labels": labels}


_worker_tokenizer: Any = None


def _start_worker(arguments):
    global _worker_tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer = tokenizer.load_tokenizer(*arguments)


def _encode_batch(batch):
    """Encodes pieces of documents: pairs of text and whether its document ends with it."""
    ids, ends = [], 0
    for text, ends_document in batch:
        ids.append(_worker_tokenizer.encode(text))
        if ends_document:
            ids.append(np.array([_worker_tokenizer.eos_id], np.int32))
            ends += 1
    size = sum(len(text) for text, _ in batch)
    return np.concatenate(ids), ends, size


def batches_of_text(files, text_key):
    """Yields lists of pieces of documents, each list about BATCH_CHARACTERS long."""
    batch, size = [], 0
    for path in files:
        for text in documents.read_documents(path, text_key):
            if not text:
                continue
            pieces = documents.split_document(text)
            for index, piece in enumerate(pieces):
                batch.append((piece, index == len(pieces) - 1))
                size += len(piece)
                if size >= BATCH_CHARACTERS:
                    yield batch
                    batch, size = [], 0
    if batch:
        yield batch


@contextlib.contextmanager
def encoder(arguments, processes):
    """Gives a function that encodes batches in order, over `processes` processes."""
    if processes == 1:
        _start_worker(arguments)
        yield lambda batches: map(_encode_batch, batches)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _start_worker, (arguments,)) as pool:
        yield lambda batches: _ordered(pool, batches, 2 * processes)


def _ordered(pool, batches, ahead):
    """Like imap, but reads only `ahead` batches before their results are taken."""
    waiting: collections.deque[Any] = collections.deque()
    for batch in batches:
        waiting.append(pool.apply_async(_encode_batch, (batch,)))
        if len(waiting) >= ahead:
            yield waiting.popleft().get()
    while waiting:
        yield waiting.popleft().get()


def prepare(inputs, output_dir, settings, processes, on_progress=lambda characters: None):
    """Writes the records of `inputs` to `output_dir`, going on where an earlier run stopped.

    Args:
        inputs: files and folders.
        output_dir: folder of the records and ``manifest.json``.
        settings: PreparationSettings.
        processes: processes that tokenize; the records do not depend on it.
        on_progress: called with the characters done since the last call.

    Returns:
        The manifest: settings, files with counts and checksums, totals.

    Raises:
        DataError: names the file and line of a bad row.
        ConfigError: if the folder holds other records, or a tokenizer file is wrong.
    """
    files = documents.find_inputs(inputs)
    arguments = (
        settings.tokenizer_type,
        settings.vocab_file,
        settings.encoder_file,
        settings.eos_id,
    )
    loaded = tokenizer.load_tokenizer(*arguments)
    pad_id = loaded.eos_id if settings.pad_id is None else settings.pad_id
    described = {**vars(settings), "inputs": [[f, os.path.getsize(f)] for f in files]}
    progress = records.Progress(output_dir, described)
    if progress.manifest():
        progress.finish({k: v for k, v in progress.manifest().items() if k != "settings"})
        return progress.manifest()
    units = []
    with encoder(arguments, processes) as encode:
        for unit, group in enumerate(documents.group_files(files, GROUP_BYTES)):
            result = progress.done(unit)
            if result is None:
                encoded = encode(batches_of_text(group, settings.text_key))
                name = f"{settings.output_name}-{unit:05d}"
                writer = records.RecordWriter(output_dir, name, settings.files_per_record)
                packer = Packer(settings.max_seq_length, pad_id)
                result = write_unit(encoded, packer, writer, settings.write_remainder, on_progress)
                progress.mark(unit, result)
            units.append(result)
    totals = {key: sum(unit[key] for unit in units) for key in ("documents", "tokens", "records")}
    written = [entry for unit in units for entry in unit["files"]]
    progress.finish({"vocab_size": loaded.vocab_size, **totals, "files": written})
    return progress.manifest()


def write_unit(encoded, packer, writer, write_remainder, on_progress):
    """Packs encoded batches into records and writes them.

    Args:
        encoded: tuples of tokens, documents ended and characters.
        packer: Packer.
        writer: RecordWriter.
        write_remainder: whether the last, padded record is written too.
        on_progress: see `prepare`.

    Returns:
        The counts of documents, tokens and records, and the files.
    """
    counts = {"documents": 0, "tokens": 0}
    for tokens, ended, characters in encoded:
        for record in packer.add(tokens):
            writer.write(record)
        counts["documents"] += ended
        counts["tokens"] += len(tokens)
        on_progress(characters)
    if write_remainder:
        for record in packer.remainder():
            writer.write(record)
    writer.close()
    total = sum(entry["records"] for entry in writer.files)
    return {**counts, "records": total, "files": writer.files}
