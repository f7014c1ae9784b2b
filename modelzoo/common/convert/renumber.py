"""Gives a training's checkpoint another global step, so that another config goes on from there."""

from __future__ import annotations

from pathlib import Path

from modelzoo.common.convert.tensorflow_checkpoint import (
    GLOBAL_STEP,
    STATE,
    TensorFlowReader,
    write_tensorflow,
)
from modelzoo.common.convert.whole_folder import whole_folder


def renumber(source, output, step, overwrite=False):
    """Copies a checkpoint, the optimizer's variables included, and calls it another step.

    Args:
        source: prefix of the checkpoint, or its folder: the latest.
        output: folder of the copy, in which training then goes on.
        step: its global step.
        overwrite: whether a checkpoint there may be replaced.

    Returns:
        Prefix of the copy.

    Raises:
        CheckpointError: there is no such checkpoint, or there is one in `output`.
    """
    reader, name = TensorFlowReader(source), f"model.ckpt-{step}"
    tensors = ((key, reader.read(key)) for key in reader.shapes if key != GLOBAL_STEP)
    with whole_folder(output, ("model.ckpt-*", STATE), overwrite) as folder:
        write_tensorflow(folder, name, tensors, step)
    return str(Path(output) / name)
