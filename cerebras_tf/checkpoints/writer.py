"""Writes arrays as a TensorFlow checkpoint, shard by shard, and atomically."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Union

import numpy as np
import tensorflow as tf

from cerebras_tf.bundle.index import index_path
from cerebras_tf.bundle.links import move_checkpoint, remove_checkpoint
from cerebras_tf.checkpoints.partitions import Key
from cerebras_tf.memoryx.process_folder import OwnFolder, remove_abandoned

Shard = Union[Mapping[Key, np.ndarray], Callable[[str], None]]
# In names of folders, between the name of the checkpoint and a random suffix.
_UNFINISHED = "_writing_"
_REMOVED = "_removing_"
_CONVERTED = "_converted_"


def write_checkpoint(prefix: str, shards: Iterable[Shard]) -> None:
    """Writes arrays as a TensorFlow checkpoint, completely or not at all.

    It is on the disk when this returns, so older ones may be deleted.

    Args:
        shards: arrays by key, of which one shard is in memory at a time; or functions that write a
            checkpoint under the path they receive, which becomes part of this one.
    """
    with unfinished(prefix) as folder:
        merged = os.path.join(folder, os.path.basename(prefix))
        parts = list(write_shards(folder, shards))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=tf.constant(parts), destination_prefix=merged
                )
            )
        move_checkpoint(merged, prefix)


@contextlib.contextmanager
def unfinished(prefix: str) -> Iterator[str]:
    """Within: a folder for the parts of a checkpoint that is being written.

    Its name identifies the checkpoint that a killed process leaves; the next one removes it.
    """
    with _temporary_folder(prefix, _UNFINISHED) as folder:
        yield folder


def removal(prefix: str) -> contextlib.AbstractContextManager[str]:
    """Within: a folder marks a checkpoint that is being removed.

    If the process is killed, the next one removes the checkpoint, unless the list names it.
    """
    return _temporary_folder(prefix, _REMOVED)


@contextlib.contextmanager
def conversion_folder(prefix: str) -> Iterator[str]:
    """Within: a folder for a converted copy of a checkpoint."""
    with _temporary_folder(prefix, _CONVERTED) as folder:
        yield folder


@contextlib.contextmanager
def _temporary_folder(prefix: str, marker: str) -> Iterator[str]:
    """Within: a folder of this process next to a checkpoint. Those of killed ones are removed."""
    parent = Path(os.path.abspath(prefix)).parent
    parent.mkdir(parents=True, exist_ok=True)
    remove_killed(parent)
    folder = OwnFolder(parent, os.path.basename(prefix) + marker)
    try:
        yield str(folder.path)
    finally:
        folder.remove()


def remove_killed(model_dir: Path) -> None:
    """Removes the unfinished checkpoints and folders that killed processes left."""
    remove_abandoned(model_dir, f"*{_UNFINISHED}*", _remove_unfinished)
    remove_abandoned(model_dir, f"*{_REMOVED}*", _remove_unlisted)
    remove_abandoned(model_dir, f"*{_CONVERTED}*")


def _remove_unfinished(folder: Path) -> None:
    """Removes the files of a folder's checkpoint unless it is complete."""
    prefix = str(folder).rpartition(_UNFINISHED)[0]
    if not os.path.exists(index_path(prefix)):
        remove_checkpoint(prefix)


def _remove_unlisted(folder: Path) -> None:
    """Removes the files of a folder's checkpoint unless the list of checkpoints names it."""
    prefix = str(folder).rpartition(_REMOVED)[0]
    try:
        state = tf.train.get_checkpoint_state(str(folder.parent))
    except ValueError:  # no text
        return
    named = {os.path.basename(path) for path in (state.all_model_checkpoint_paths if state else ())}
    if named and os.path.basename(prefix) not in named:
        remove_checkpoint(prefix)
        Path(f"{prefix}.meta").unlink(missing_ok=True)


def write_shards(folder: str, shards: Iterable[Shard]) -> Iterator[str]:
    """Writes each shard as a separate checkpoint; yields their prefixes."""
    for number, shard in enumerate(shards):
        part = os.path.join(folder, f"part-{number:05d}")
        if callable(shard):
            shard(part)
        else:
            _save_shard(part, shard)
        yield part


def _save_shard(path: str, shard: Mapping[Key, np.ndarray]) -> None:
    names, slices = zip(*((key, "") if isinstance(key, str) else key for key in shard))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = [tf.compat.v1.placeholder(array.dtype, array.shape) for array in shard.values()]
        op = tf.raw_ops.SaveV2(
            prefix=path, tensor_names=names, shape_and_slices=slices, tensors=inputs
        )
        session.run(op, dict(zip(inputs, shard.values())))
