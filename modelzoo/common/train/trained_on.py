"""Stores the vocabulary that a checkpoint was trained on, and refuses to continue with another.

With another vocabulary the same tokens have other meanings, which nothing else detects. The file
``trained_on.json`` of the model folder is written when training begins, and is copied with the
checkpoint. A converted checkpoint has none and may continue with any vocabulary.
"""

import json
from pathlib import Path

from cerebras_tf.errors import DataError
from cerebras_tf.user_files import read_json, reason
from cerebras_tf.whole_file import write_whole
from modelzoo.common.data.prepared import find_vocabularies
from modelzoo.common.model_dir.folder import TRAINED_ON


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


def save_vocabulary(params, step):
    """Writes the vocabularies of training from a global step on; others stay as they were."""
    folder = params.runconfig.model_dir
    before = _read(folder) if step and not params.runconfig.restore_partially else {}
    found = {key: list(of) for key, of in find_vocabularies(params.train_input).items()}
    path = Path(folder, TRAINED_ON)
    if {**before, **found}:
        write_whole(path, json.dumps({**before, **found}, indent=1) + "\n")
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
