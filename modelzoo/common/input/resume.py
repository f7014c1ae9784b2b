"""Tells an input pipeline where to go on after a restart. Of a checkpoint it reads the step alone.

All pipelines here are a function of their seed, so skipping the batches that a checkpoint has
seen gives the very stream that an uninterrupted run would have seen.
"""

from __future__ import annotations

import os

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import CheckpointError
from modelzoo.common.checkpoint_files import advice_instead, latest_checkpoint


def checkpoint_step(model_dir):
    """Returns the global step of the latest checkpoint in `model_dir`, 0 without one.

    Raises:
        CheckpointError: if the latest checkpoint is gone or cannot be read.
    """
    path = latest_checkpoint(model_dir) if model_dir else None
    if path is None:
        return 0
    try:
        reader = tf.train.NewCheckpointReader(path)
    except (tf.OpError, ValueError) as error:
        raise CheckpointError(
            f"{path}: must be a readable checkpoint, because it is the latest that "
            f"{os.path.join(model_dir, 'checkpoint')} names. Received: {error}. "
            f"{advice_instead(path)}"
        ) from error
    return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0


def batches_to_skip(section, runconfig, batches_per_step=1):
    """Returns how many batches training has read before.

    Args:
        section: the input section, with `skip_steps` (a number wins over the checkpoint).
        runconfig: RunConfigParams.
        batches_per_step: batches read for each step of the global step.

    Returns:
        A number of batches.
    """
    if section.skip_steps is not None:
        return section.skip_steps * batches_per_step
    if runconfig.disable_input_pipeline_ckpt:
        return 0
    return checkpoint_step(runconfig.model_dir) * batches_per_step
