"""Finds how many tokens stand for a byte of the text that an input section reads."""

import functools
import os
import re
from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import DataError
from modelzoo.common.data.prepared import read_facts
from modelzoo.common.data.text_files import find_text_files, split_files

# GPT-2 tokens per byte of the Pile and of OpenWebText2, as Gao et al., The Pile (2020), count them.
PUBLISHED = {"pile": 0.29335, "owt": 0.2434, "openwebtext2": 0.2434}
GPT2_SIZES = 50257, 50400  # of its tokens, and with the rows that GPT-J adds
OF_BYTES = "GptTextDataProcessor"


def tokens_per_byte(section, training):
    """Returns the tokens per byte of an input section's text, None where they are not known.

    Ends of texts are tokens too: what a model pays for them belongs to the cost of the text.
    They are counted in text read as bytes, come from the manifest of prepared records, or else from
    the name of their folder or of the one above, such as
    ``pile_gpt2_msl2048/train``. A line is logged where none of these has them.

    Args:
        section: an input section of a language model, or None.
        training: whether its training split is meant, of a section that splits files.
    """
    if section is None:
        return None
    if section.data_processor == OF_BYTES:
        return _of_text(section, training)
    folders = section.data_dir
    folders = (folders,) if isinstance(folders, str) else tuple(folders)
    return _of_records(folders, section.vocab_size)


def _of_text(section, training):
    try:
        files = find_text_files(section.data_dir, section.file_patterns)
        files = split_files(files, section.eval_fraction, training)
        text_bytes = sum(os.path.getsize(path) for _, path in files)
    except (DataError, OSError):
        return None  # the input function, if the mode needs data, raises
    return (text_bytes + len(files)) / text_bytes if text_bytes else None


@functools.cache  # one line of the log a run
def _of_records(folders, vocab_size):
    found = [read_facts(folder) for folder in folders]
    counts = [facts.tokens_and_bytes for facts in found if facts and facts.tokens_and_bytes]
    if counts and len(counts) == len(folders):
        tokens, text_bytes = map(sum, zip(*counts))
        return tokens / text_bytes
    ratios = {None if facts else _published(folder) for facts, folder in zip(found, folders)}
    if len(ratios) == 1 and None not in ratios and vocab_size in GPT2_SIZES:
        return ratios.pop()
    tf.logging.info(
        "bits per byte are not shown: it is not known how many bytes the tokens of %s are",
        ", ".join(folders),
    )
    return None


def _published(folder):
    words = (re.split(r"[\W_]", name.lower())[0] for name in reversed(Path(folder).parts[-2:]))
    return next((PUBLISHED[word] for word in words if word in PUBLISHED), None)
