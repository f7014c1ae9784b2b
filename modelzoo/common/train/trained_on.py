"""Remembers the vocabulary that a checkpoint was trained on, and refuses to go on with another.

Tokens would have other meanings, all of them valid, so that nothing else ever told it. The file
``trained_on.json`` of model_dir is written when training begins, and goes with the checkpoint to
other folders; one that was converted or trained before has none, and may go on with anything.
"""

from __future__ import annotations

import json
from pathlib import Path

from cerebras_tf.errors import DataError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.data.prepared import told_vocabularies
from modelzoo.common.files.json_text import parse_json
from modelzoo.common.model_dir.folder import TRAINED_ON


def check_trained_on(params, step):
    """Checks that training goes on with the vocabulary of the steps before.

    Only what is told in the same way, by manifests of records or under the same key, is compared.

    Args:
        params: a model's parameters.
        step: global step of the checkpoint that it goes on from; 0 for none, or of no training.

    Raises:
        DataError: it is another, or the file is damaged.
    """
    folder = params.runconfig.model_dir
    if not step or params.runconfig.restore_partially:  # another model may go on
        return
    before = _read(folder)
    for key, (name, digest) in told_vocabularies(params.train_input).items():
        if key in before and before[key][1] != digest:
            raise DataError(
                f"{Path(folder, TRAINED_ON)}: training must go on with the tokens that its steps "
                f"before had, under the same numbers: those of {before[key][0]}. Received: others, "
                f"those of {name}. Name the former in train_input, or give another folder after "
                "-o. Where the tokens agree after all, remove this file."
            )


def remember_trained_on(params, step):
    """Writes what training has from a global step on; what it does not tell stays as it was."""
    folder = params.runconfig.model_dir
    before = _read(folder) if step and not params.runconfig.restore_partially else {}
    told = {key: list(of) for key, of in told_vocabularies(params.train_input).items()}
    path = Path(folder, TRAINED_ON)
    if {**before, **told}:
        write_whole(path, json.dumps({**before, **told}, indent=1) + "\n")
    else:
        path.unlink(missing_ok=True)


def _read(folder):
    """Returns (name, digest) by what told it, {} without the file."""
    path = Path(folder, TRAINED_ON)
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if not all(isinstance(of, list) and len(of) == 2 for of in found.values()):
            raise ValueError("no names and digests")
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: must be what a training wrote. Received: {error}. Restore it, or remove it."
        ) from error
    return found
