"""Reads text as tokens, without preparation, and cuts them into windows.

Tokens are held in memory, or in a file in the cache folder if the text is large. The windows of any
step are a function of the seed, so a stream can start at any step at no cost.
"""

import codecs
import contextlib
import fnmatch
import functools
import glob
import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cerebras_tf.api import counted, get_logger, progress_bar
from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.user_files import open_regular, read_bytes, read_json
from modelzoo.common.config.input_sections import TEXT_PATTERNS
from modelzoo.common.data import token_cache
from modelzoo.common.data.batches import EpochOrder
from modelzoo.common.files import text_sources
from modelzoo.common.files.compressed import is_compressed
from modelzoo.common.files.folders import files_below, refuse_repeated
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.files.split_names import files_of_split
from modelzoo.common.files.text_lines import PACKED, not_utf8
from modelzoo.common.tokenizers.tokenizer_files import keys_of_section
from modelzoo.common.tokenizers.tokenizers import (
    ByteLevelTokenizer,
    ByteTokenizer,
    require_tokens,
    split_text,
)

END_OF_DOCUMENT = 256  # the token after every file; bytes are their own tokens
OWN_TEXT = Path(__file__).resolve().parent / "shakespeare"  # part of the package
SPLIT_BUCKETS = 10_000
MAX_MEMORY_BYTES = 1 << 27  # input whose tokens are held in memory
EXPANSION = 8  # bytes of text in a byte of a compressed file, about
SHOWN_BYTES = 1 << 23  # input that is read with a progress bar
BLOCK_BYTES = 1 << 22
PIECE_CHARACTERS = 1 << 20  # text that is tokenized at a time
ROW_SUFFIXES = tuple(
    end for end in text_sources.SUFFIXES if not end.startswith((".txt", ".xz", ".tar", ".tgz"))
)
DATASET, DATASETS = "state.json", "dataset_dict.json"  # files of datasets' save_to_disk
EVALUATION_SPLITS = ("validation", "valid", "dev", "test")
NO_TEXT = ("readme", "license")  # beginnings of names of text next to rows


def find_text_files(sources, patterns):
    """Lists text files.

    Args:
        sources: a folder, file or glob, a list of them, or None for OWN_TEXT.
        patterns: names read in folders, such as ``*.txt``.

    Returns:
        Sorted pairs of the path relative to its source, and the path.
    """
    if sources is None:
        sources, patterns = str(OWN_TEXT), ["*.txt"]
    sources = [sources] if isinstance(sources, str) else list(sources)
    found = [pair for source in sources for pair in _expand(source, patterns)]
    if not found:
        raise _without_files(sources, patterns)
    refuse_repeated(path for _, path in found)
    return sorted(found)


def _without_files(sources, patterns):
    """Returns the error of sources without files of the patterns, which names those they have."""
    others = [path for source in sources for path in files_below(source)]
    advice = "Set file_patterns to the names of your files."
    received = "no files"
    if others:
        received = f"{counted(len(others), 'other file')}, such as {others[0]}"
    if tuple(patterns) == TEXT_PATTERNS:
        patterns = (*patterns, *(f"*{end}" for end in ROW_SUFFIXES))
    return DataError(
        f"data_dir: must contain files named {', '.join(patterns)}. Received: "
        f"{', '.join(sources)}, with {received}. {advice}"
    )


def _walk(folder, patterns):
    """Lists the files of a folder that match; with TEXT_PATTERNS and no match, files of rows."""
    names = [(os.path.relpath(path, folder), str(path)) for path in files_below(folder)]
    found = [
        pair
        for pair in names
        if any(fnmatch.fnmatch(_name(pair).lower(), pattern.lower()) for pattern in patterns)
    ]
    if tuple(patterns) != TEXT_PATTERNS:
        return found
    rows = [pair for pair in names if _name(pair).lower().endswith(ROW_SUFFIXES)]
    if rows:
        texts = [pair for pair in found if not _name(pair).lower().startswith(NO_TEXT)]
        if texts:
            ends = sorted({f"*{Path(path).suffix}" for _, path in texts + rows})
            raise DataError(
                f"{folder}: must have files of text or files of rows, if file_patterns is not set. "
                f"Received: {counted(len(texts), 'file')} of text, such as {texts[0][0]}, and "
                f"{len(rows)} of rows, such as {rows[0][0]}. Set file_patterns to those to read, "
                f"or to {ends}."
            )
        found = rows
    skipped = sorted(set(names) - set(found))
    if found and skipped:
        _log_once(
            f"{folder}: {len(skipped)} of {counted(len(names), 'file')} not read because of the "
            f"name, such as {skipped[0][0]}. Set file_patterns to read others"
        )
    return found


def _name(pair):
    return os.path.basename(pair[1])


@functools.cache  # one line a folder and run
def _log_once(line):
    get_logger().info("%s", line)


def _files_of_dataset(folder):
    """Lists the files of a folder that datasets' save_to_disk wrote; None for another folder."""
    if os.path.exists(os.path.join(folder, DATASETS)):
        raise DataError(
            f"{folder}: must be one data set if it is in a list. Received: several, by its "
            f"{DATASETS}. List the folders in it."
        )
    found = _read_facts(Path(folder, DATASET), "_data_files")
    if found is None:
        return None
    names = [str(each["filename"]) for each in found]
    return [(name, os.path.join(folder, name)) for name in names]


def _read_facts(path, key):
    """Returns a value of a JSON file; None if it is of another program or does not exist."""
    try:
        return read_json(path)[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _split_of_datasets(section, training):
    """Returns the `data_dir` and `eval_fraction` of a section.

    Of a folder with several data sets, evaluation reads the one that is meant for it; without such,
    and else, a fraction.
    """
    folder = section.data_dir
    splits = _read_facts(Path(folder, DATASETS), "splits") if isinstance(folder, str) else None
    if splits is None:
        return folder, section.eval_fraction
    if "train" not in splits:
        raise DataError(
            f"{folder}: must contain the data set 'train'. Received: {', '.join(splits)}. Set "
            "data_dir of train_input and eval_input to the folders in it."
        )
    held_out = next((name for name in EVALUATION_SPLITS if name in splits), None)
    name = "train" if training or held_out is None else held_out
    return os.path.join(folder, name), 0.0 if held_out else section.eval_fraction


def _expand(source, patterns):
    if os.path.isdir(source):
        return _files_of_dataset(source) or _walk(source, patterns)
    if os.path.isfile(source):
        return [(os.path.basename(source), source)]
    paths = [path for path in glob.glob(source, recursive=True) if os.path.isfile(path)]
    if not paths:
        advice = advice_on_path(source)
        raise DataError(
            f"data_dir: must be a folder, a file or a glob that matches files. Received: "
            f"{source!r}. {advice}"
        )
    plain = Path(source.split("*")[0].split("?")[0].split("[")[0])
    root = plain if plain.is_dir() else plain.parent
    return [(os.path.relpath(path, root), path) for path in paths]


def split_files(files, eval_fraction, training):
    """Keeps the files of one split; a file's split depends on its relative path only.

    Args:
        files: pairs of `find_text_files`.
        eval_fraction: share kept for evaluation; with 0 both splits hold every file.

    Returns:
        The pairs of the split; may be empty.
    """
    if eval_fraction == 0:
        return files
    limit = eval_fraction * SPLIT_BUCKETS
    kept = []
    for relative, path in files:
        name = relative.replace(os.sep, "/").encode("utf-8", "surrogateescape")
        if (zlib.crc32(name) % SPLIT_BUCKETS >= limit) == training:
            kept.append((relative, path))
    return kept


def is_split_by_position(files, eval_fraction):
    """Returns whether a split by files would be empty, so that the text is split instead."""
    return not all(split_files(files, eval_fraction, training) for training in (True, False))


@dataclass(frozen=True)
class Text:
    """The tokens of files.

    Attributes:
        tokens: [number of tokens] integers; an array, or a memory map of a file.
        text_bytes: bytes of the text in UTF-8.
        crc32: of all tokens of the files, also of those of the other split.
    """

    tokens: np.ndarray
    text_bytes: int
    crc32: int


def read_text(section, training):
    """Reads the tokens of one split of the text that an input section names.

    Returns:
        Text; with a split by position `text_bytes` are in proportion.
    """
    data_dir, fraction = _split_of_datasets(section, training)
    files = find_text_files(data_dir, section.file_patterns)
    kept = files_of_split(files, training, _log_once)
    by_position = kept is None and is_split_by_position(files, fraction)
    if kept is None:
        kept = files if by_position else split_files(files, fraction, training)
        if data_dir and fraction and not by_position:
            _log_split(tuple(files), fraction)
    keys, size = keys_of_section(section), section.vocab_size
    stamps = tuple((path, *_stamp(path)) for _, path in kept)
    text = _read_text(stamps, section.text_key, keys, size, section.cache_dir)
    if not by_position:
        return text
    _log_once(
        f"data_dir: {counted(len(files), 'file')}; the last {100 * fraction:g} % of the "
        "text is for evaluation"
    )
    cut = len(text.tokens) - int(len(text.tokens) * fraction)
    tokens = text.tokens[:cut] if training else text.tokens[cut:]
    text_bytes = round(text.text_bytes * len(tokens) / max(len(text.tokens), 1))
    return Text(tokens, text_bytes, text.crc32)


@functools.cache  # one line a run
def _log_split(files, fraction):
    held_out = split_files(files, fraction, training=False)
    sizes = [sum(_stamp(path)[0] for _, path in of) for of in (held_out, files)]
    get_logger().info(
        "data_dir: %s for training and %d for evaluation, %.1f %% of the bytes, by a hash of their "
        "paths",
        counted(len(files) - len(held_out), "file"),
        len(held_out),
        100 * sizes[0] / max(sizes[1], 1),
    )


def _stamp(path):
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=2)  # training and evaluation, which reads its text every time
def _read_text(stamps, text_key, keys, vocab_size, cache_dir):
    """Returns the Text of files, each a path with its size and time."""
    tokenizer = keys.load()
    require_tokens(tokenizer, "eos")
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"tokenizer: must have at most vocab_size tokens, {vocab_size}. Received: "
            f"{tokenizer.source} with {tokenizer.vocab_size}. Set vocab_size, or use the model's "
            "tokenizer."
        )
    total = sum(size for _, size, _ in stamps)
    most = sum(size * _expansion(path) for path, size, _ in stamps)
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4")
    shown = progress_bar(total, "B", text="reading text", unit_scale=True)
    with shown if total > SHOWN_BYTES else contextlib.nullcontext() as bar:
        on_read = bar.update if bar is not None else lambda size: None
        parts = _encoded([path for path, *_ in stamps], text_key, tokenizer, on_read)
        if most > MAX_MEMORY_BYTES:
            # Two tokenizers with one vocabulary may still make different tokens.
            own = [hashlib.sha256(read_bytes(path)).hexdigest() for path in keys.files()]
            names = json.dumps([stamps, text_key, own, tokenizer.facts, tokenizer.eos_id])
            name = f"{hashlib.sha256(names.encode()).hexdigest()[:32]}.tokens"
            folder = Path(cache_dir or token_cache.default_folder())
            return Text(*token_cache.open_tokens(folder / name, parts, dtype))
        arrays, text_bytes = [np.empty(0, dtype)], 0
        for tokens, size in parts:
            arrays.append(tokens.astype(dtype))
            text_bytes += size
        tokens = np.concatenate(arrays)
        return Text(tokens, text_bytes, zlib.crc32(tokens))


def _expansion(path):
    """Returns the bytes of text that a byte of a file may hold."""
    packed = is_compressed(path) or text_sources.form_of(path) == text_sources.PARQUET
    return EXPANSION if packed else 1


def _encoded(paths, text_key, tokenizer, on_read):
    """Yields tokens and the number of bytes of their text; each document ends with an end token."""
    end = np.array([tokenizer.eos_id])
    for path in paths:
        if path.lower().endswith(PACKED) and not is_compressed(path):
            raise DataError(
                f"{path}: must be text, rows, or compressed by gzip, xz or zstd. Received: another "
                "compressed file, according to its name. Unpack it."
            )
        try:
            is_text = text_sources.form_of(path) == text_sources.TEXT and not is_compressed(path)
            by_blocks = is_text and isinstance(tokenizer, (ByteTokenizer, ByteLevelTokenizer))
            documents = text_sources.read_documents(path, text_key, on_read=on_read)
            texts = ([text] for text in documents if text)
            for pieces in [_pieces_of(path, on_read)] if by_blocks else texts:
                for piece in pieces:
                    yield tokenizer.encode(piece), len(piece.encode("utf-8"))
                yield end, 0
        except OSError as error:
            raise _unreadable(path, error) from error


def _blocks_of(path, on_read):
    """Yields the bytes of a text file."""
    with open_regular(path) as file:
        first = True
        while block := file.read(BLOCK_BYTES):
            if first:
                text_sources.check_is_text(block[: text_sources.HEAD_BYTES], path, path)
            first = False
            on_read(len(block))
            yield block


def _pieces_of(path, on_read):
    """Yields the text of a file, which may be larger than memory, cut where no token is cut."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest, lines = "", 1
    try:
        for block in _blocks_of(path, on_read):
            *whole, rest = split_text(rest + decoder.decode(block), PIECE_CHARACTERS)
            yield from whole
            lines += sum(piece.count("\n") for piece in whole)
        yield rest + decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        lines += rest.count("\n") + error.object[: error.start].count(b"\n")
        raise not_utf8(path, lines, error) from error


def _unreadable(path, error):
    return DataError(
        f"{path}: must be a readable file. Received: {error.strerror}. "
        f"{advice_on_path(path, 'Check its permissions.')}"
    )


def open_windows(section, training, length, keep_remainder):
    """Reads one split of the text that an input section names.

    Returns:
        Windows.
    """
    seed = (section.shuffle_seed or 0) if section.shuffle else None
    tokens = read_text(section, training).tokens
    return Windows(tokens, length, section.batch_size, seed, keep_remainder)


class Windows:
    """Batches of windows of a row of tokens, addressed by their number.

    Window w holds tokens w * length to (w + 1) * length, both included: the inputs and, shifted
    by one, the labels. The order differs between epochs, and depends on the seed.

    Args:
        tokens: [number of tokens] integers.
        seed: of the order, or None for the order of the text.
        keep_remainder: whether an epoch ends with the windows that do not fill a batch.
    """

    def __init__(self, tokens, length, batch_size, seed, keep_remainder=False):
        self._tokens = tokens
        self._length = length
        self._order = EpochOrder((len(tokens) - 1) // length, batch_size, seed, keep_remainder)
        self.batches_per_epoch = self._order.batches_per_epoch
        if not self.batches_per_epoch:
            least = 1 if keep_remainder else batch_size
            raise DataError(
                f"data_dir: must contain at least {least * length + 1} tokens for one batch of "
                f"{least} windows of {length}. Received: {len(tokens)}. Add text, or lower "
                "batch_size or max_sequence_length."
            )

    def batch(self, number):
        """Returns a batch, [batch_size, length + 1] int32; the last one may be smaller."""
        windows = self._order.examples_of(number)
        offsets = windows[:, None] * self._length + np.arange(self._length + 1)
        return self._tokens[offsets].astype(np.int32)
