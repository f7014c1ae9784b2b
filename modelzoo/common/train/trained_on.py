"""Stores the vocabulary and the data that a checkpoint was trained on.

Training is not continued with another vocabulary: the same tokens would have other meanings, which
nothing else detects. With other data, such as a text that has grown, a warning is logged. The file
``trained_on.json`` of the model folder is written when training begins, and is copied with the
checkpoint. A converted checkpoint has none and may continue with any vocabulary.
"""

import json
import zlib
from pathlib import Path

from cerebras_tf.api import counted, get_logger, in_bytes
from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.user_files import read_json, reason
from cerebras_tf.whole_file import write_whole
from modelzoo.common.data.prepared import find_vocabularies
from modelzoo.common.data.text_files import read_text
from modelzoo.common.model_dir.folder import TRAINED_ON

DATA = "data"  # the key of the data in the file, next to those of vocabularies


def check_vocabulary(params, step, folder=None):
    """Checks that training continues with the vocabulary of the earlier steps.

    Only vocabularies from the same source, manifests of records or the same key, are compared.

    Args:
        step: global step of the checkpoint that it continues from; 0 for none.
        folder: the folder of that checkpoint; None for model_dir.
    """
    folder = folder or params.runconfig.model_dir
    if not step or params.runconfig.restore_partially:  # another model may continue
        return
    before = _read(folder)
    for key, (name, digest) in find_vocabularies(params.train_input).items():
        if key in before and before[key][1] != digest:
            raise DataError(
                f"{Path(folder, TRAINED_ON)}: training must continue with the vocabulary of its "
                f"earlier steps, {before[key][0]}. Received: {name}, which has other tokens. Use "
                "the earlier vocabulary in train_input, or another folder with -o. If the tokens "
                "are the same, remove this file."
            )
    _warn_of_other_data(before, _find_data(params.train_input))


def follow_data(params, step):
    """Checks and stores the data only, for a model without TensorFlow; see `check_vocabulary`."""
    folder, found = params.runconfig.model_dir, _find_data(params.train_input)
    before = _read(folder) if step else {}
    _warn_of_other_data(before, found)
    _write(folder, {**before, **found})


def _warn_of_other_data(before, found):
    if DATA in before and before[DATA] != found.get(DATA, before[DATA]):
        get_logger().warning(
            "train_input: the data are not those of the earlier steps. Before: %s. Now: %s. "
            "Training continues at its position in the new data, so that parts of them may be "
            "repeated or skipped. Use another folder with -o to begin again",
            before[DATA][0],
            found[DATA][0],
        )


def _find_data(section):
    """Returns a description and a digest of the data of a section; {} if there are none to read."""
    try:
        if hasattr(section, "file_patterns"):
            text = read_text(section, training=True)
            count, digest = counted(len(text.tokens), "token"), f"{text.crc32:08x}"
        else:
            sources = getattr(section, "data_dir", None) or getattr(section, "data_file", None)
            paths = map(Path, [sources] if isinstance(sources, str) else sources or [])
            files = [
                file for path in paths for file in (path.iterdir() if path.is_dir() else [path])
            ]
            sizes = sorted((file.name, file.stat().st_size) for file in files if _is_data(file))
            if not sizes:
                return {}
            count = f"{counted(len(sizes), 'file')} of {in_bytes(sum(size for _, size in sizes))}"
            digest = f"{zlib.crc32(json.dumps(sizes).encode()):08x}"
    except (OSError, TypeError, ConfigError, DataError):
        return {}  # no data, or their reader raises the error
    return {DATA: [f"{count}, CRC-32 {digest}", digest]}


def _is_data(path):
    return ".tfrecord" in path.name or path.suffix in (".h5", ".tsv", ".jsonl")


def save_vocabulary(params, step):
    """Writes vocabularies and data of training from a global step on; others stay as they were."""
    folder = params.runconfig.model_dir
    before = _read(folder) if step and not params.runconfig.restore_partially else {}
    found = {key: list(of) for key, of in find_vocabularies(params.train_input).items()}
    _write(folder, {**before, **found, **_find_data(params.train_input)})


def _write(folder, content):
    """Writes the file, or removes it if there is nothing to store."""
    path = Path(folder, TRAINED_ON)
    if content:
        write_whole(path, json.dumps(content, indent=1) + "\n")
    else:
        path.unlink(missing_ok=True)


def _read(folder):
    """Returns (name, digest) by source, {} without the file."""
    path = Path(folder, TRAINED_ON)
    try:
        found = read_json(path, {str: [(str, type(None))]})
        if any(len(of) != 2 for of in found.values()):
            raise ValueError("no names and digests")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: must be a file written by training. Received: {reason(error)}. "
            "Restore it, or remove it."
        ) from error
    return found
