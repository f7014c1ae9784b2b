"""Reads text files as bytes and cuts them into windows.

Everything is held in memory, two bytes a character; TFRecords are for what does not fit. The
windows of any step are a function of the seed, so a stream can start at any step at no cost.
"""

import fnmatch
import glob
import os
import zlib
from pathlib import Path

import numpy as np

from cerebras_tf.errors import DataError
from modelzoo.common.data.batches import EpochOrder
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.files.text_lines import PACKED

END_OF_DOCUMENT = 256  # the token after every file; bytes are their own tokens
OWN_TEXT = Path(__file__).resolve().parent / "shakespeare"  # part of the package
SPLIT_BUCKETS = 10_000


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
        raise DataError(
            f"data_dir: must contain files named {' or '.join(patterns)}. Received: "
            f"{', '.join(sources)}, with none. Set file_patterns to the names of your files."
        )
    for _, path in found:
        if path.lower().endswith(PACKED):
            raise DataError(
                f"{path}: must be a text file. Received: a compressed file, according to its name. "
                "Unpack it, or remove it from file_patterns."
            )
    return sorted(found)


def _walk(folder, patterns):
    pairs = []
    for parent, _, names in os.walk(folder):
        for name in names:
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                path = os.path.join(parent, name)
                pairs.append((os.path.relpath(path, folder), path))
    return pairs


def _expand(source, patterns):
    if os.path.isdir(source):
        return _walk(source, patterns)
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
        The pairs of the split.
    """
    if eval_fraction == 0:
        return files
    limit = eval_fraction * SPLIT_BUCKETS
    kept = []
    for relative, path in files:
        name = relative.replace(os.sep, "/").encode("utf-8", "surrogateescape")
        if (zlib.crc32(name) % SPLIT_BUCKETS >= limit) == training:
            kept.append((relative, path))
    if not kept:
        split = "training" if training else "evaluation"
        raise DataError(
            f"data_dir: the {split} split of the files must not be empty. Received: {len(files)} "
            f"file(s), eval_fraction {eval_fraction}. Add files, or set eval_fraction to 0 and set "
            "data_dir of eval_input."
        )
    return kept


def read_tokens(files):
    """Reads files as one row of tokens: their bytes, END_OF_DOCUMENT after each.

    Returns [number of tokens] uint16.
    """
    parts = []
    for _, path in files:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(
                f"{path}: must be a readable file. Received: {error.strerror}. "
                f"{advice_on_path(path, 'Check its permissions.')}"
            ) from error
        parts.append(np.frombuffer(data, np.uint8).astype(np.uint16))
        parts.append(np.array([END_OF_DOCUMENT], np.uint16))
    return np.concatenate(parts)


def open_windows(section, training, length, keep_remainder):
    """Reads one split of the files that an input section names.

    Returns:
        Windows.
    """
    files = find_text_files(section.data_dir, section.file_patterns)
    files = split_files(files, section.eval_fraction, training)
    seed = (section.shuffle_seed or 0) if section.shuffle else None
    return Windows(read_tokens(files), length, section.batch_size, seed, keep_remainder)


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
                f"data_dir: must contain at least {least * length + 1} bytes for one batch of "
                f"{least} windows of {length}. Received: {len(tokens)}. Add text, or lower "
                "batch_size or max_sequence_length."
            )

    def batch(self, number):
        """Returns a batch, [batch_size, length + 1] int32; the last one may be smaller."""
        windows = self._order.examples_of(number)
        offsets = windows[:, None] * self._length + np.arange(self._length + 1)
        return self._tokens[offsets].astype(np.int32)
