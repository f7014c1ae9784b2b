"""Writes arrays as a TensorFlow checkpoint, shard by shard; all of it appears, or nothing."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Union

import numpy as np
import tensorflow as tf

from cerebras_tf.estimator.partitions import Key

Shard = Union[Mapping[Key, np.ndarray], Callable[[str], None]]
_UNFINISHED = "_writing_"


def write_checkpoint(prefix: str, shards: Iterable[Shard]) -> None:
    """Writes arrays as a TensorFlow checkpoint; all of it or nothing appears under the prefix.

    Args:
        prefix: path prefix of the checkpoint's files.
        shards: arrays by variable name, or (name of the whole, slice) of a part; one shard is in
            memory at a time. Or functions that write a checkpoint of their own, which becomes part
            of this one, under the path they are given.
    """
    with unfinished(prefix) as folder:
        parts = list(write_shards(folder, shards))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=tf.constant(parts), destination_prefix=prefix
                )
            )


@contextlib.contextmanager
def unfinished(prefix: str) -> Iterator[str]:
    """Within: a folder for the parts of a checkpoint in the making."""
    folder = f"{prefix}{_UNFINISHED}{os.getpid()}"
    _remove_leftovers(os.path.dirname(prefix))
    try:
        os.makedirs(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_shards(folder: str, shards: Iterable[Shard]) -> Iterator[str]:
    """Writes each shard as a checkpoint of its own; yields their prefixes."""
    for number, shard in enumerate(shards):
        part = os.path.join(folder, f"part-{number:05d}")
        if callable(shard):
            shard(part)
        else:
            _save_shard(part, shard)
        yield part


def _remove_leftovers(folder: str) -> None:
    """Removes what processes that were killed while saving left in a folder."""
    for path in glob.glob(os.path.join(glob.escape(folder), f"*{_UNFINISHED}*")):
        number = path.rpartition("_")[2]
        if number.isdecimal() and not _is_running(int(number)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _save_shard(path: str, shard: Mapping[Key, np.ndarray]) -> None:
    names, slices = zip(*((key, "") if isinstance(key, str) else key for key in shard))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = [tf.compat.v1.placeholder(array.dtype, array.shape) for array in shard.values()]
        op = tf.raw_ops.SaveV2(
            prefix=path, tensor_names=names, shape_and_slices=slices, tensors=inputs
        )
        session.run(op, dict(zip(inputs, shard.values())))
