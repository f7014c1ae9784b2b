"""Compares what a run reads with what its checkpoint was trained on.

That is the ``train_input`` which the run before has saved beside the checkpoint: the one that a
params file has now may be another.
"""

from __future__ import annotations

import os

from cerebras_tf.errors import CheckpointError, DataError
from modelzoo.common.checkpoint_files import chosen_checkpoint
from modelzoo.common.input.prepared import check_sections
from modelzoo.common.input.resume import checkpoint_step
from modelzoo.common.params import saved_params


def check_trained(params, sections):
    """Checks that input sections have the vocabulary and labels of the training before.

    Args:
        params: a model's parameters.
        sections: the input sections that are read; see prepared.check_sections.

    Raises:
        DataError: names what differs, and where the other is named.
    """
    folder = _folder_of_checkpoint(params.runconfig)
    before = saved_params(type(params), folder) if folder else None
    if before is None or before.train_input == params.train_input:
        return
    try:
        check_sections([before.train_input, *sections], params.label_count)
    except DataError as error:
        raise DataError(
            f"{error} The checkpoint in {folder} was trained on the former, as its params.yaml "
            "tells; what is trained on others needs another folder after -o."
        ) from error


def _folder_of_checkpoint(runconfig):
    """Returns where the checkpoint is that this run goes on from or reads; None without any."""
    if runconfig.mode in ("train", "train_and_eval"):
        return runconfig.model_dir if checkpoint_step(runconfig.model_dir) else None
    try:
        return os.path.dirname(chosen_checkpoint(runconfig))
    except CheckpointError:  # told where it is read; compiling reads none
        return None
