"""Checkpoints whose variables are of another dtype than the model's: moments in bfloat16.

TensorFlow restores a variable only from its own dtype. Between float32 and bfloat16 contents are
converted, and the log says so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import numpy as np

from cerebras_tf.bundle.index import Entry, read_index
from cerebras_tf.checkpoints.content import open_checkpoint, read_variable
from cerebras_tf.checkpoints.writer import beside_for_conversion
from cerebras_tf.console.log import say
from cerebras_tf.errors import CheckpointError
from cerebras_tf.kernels.half_precision import to_storage
from cerebras_tf.memoryx.bundle_writer import BundleWriter

_CONVERTED = ("bfloat16", "float32")


def differing(path: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """Variables to be converted: their dtypes in the model, by name; tells of them in the log.

    Args:
        path: prefix of the checkpoint.
        wanted: dtypes of the model's variables, by name.
    """
    types = open_checkpoint(path).get_variable_to_dtype_map()
    found = {}
    for name, dtype in wanted.items():
        there = types[name].name if name in types else dtype
        if there != dtype and {there, dtype} == set(_CONVERTED):
            found[name] = dtype
    for dtype, other in (_CONVERTED, _CONVERTED[::-1]):
        count = sum(kind == dtype for kind in found.values())
        if count:
            text = "%d variables of %s are %s there and are %s here; they are converted"
            say(text, count, path, other, dtype)
    return found


@contextlib.contextmanager
def converted(path: str, wanted: Mapping[str, str]) -> Iterator[str]:
    """Within: the prefix of a checkpoint in which variables have the dtypes of the model.

    It is the one given where they have them there; else one beside it, which shares what needs no
    conversion by links, and goes afterwards.

    Args:
        path: prefix of the checkpoint.
        wanted: dtypes of the model's variables, by name.

    Raises:
        CheckpointError: the checkpoint is damaged, or holds a variable in parts, or nothing can be
            written beside it.
    """
    changed = differing(path, wanted)
    if not changed:
        yield path
        return
    entries = read_index(path)
    parts = [name for name, entry in entries.items() if entry.dtype and not entry.is_whole]
    if parts:
        raise CheckpointError(
            f"checkpoint {path}: variables must be whole where others are converted. Received: "
            f"{parts[0]} in parts. Train on from it on the wafer without memoryx_moment_dtype "
            "first."
        )
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(beside_for_conversion(path))
            prefix = os.path.join(folder, os.path.basename(path))
            _convert(path, entries, changed, prefix)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path}: variables of another dtype must be written to a folder beside "
                f"it. Received: {error.strerror}. Free disk space or correct the folder's "
                "permissions, or copy the checkpoint to another folder."
            ) from error
        yield prefix


def _convert(
    path: str, entries: Mapping[str, Entry], changed: Mapping[str, str], prefix: str
) -> None:
    """Makes a checkpoint of another in which some variables, given by name, have other dtypes."""
    reader = open_checkpoint(path)
    writer = BundleWriter(os.path.dirname(prefix))
    try:
        for name, dtype in changed.items():
            content = np.asarray(read_variable(reader, path, name))
            writer.add(name, to_storage(content, dtype), dtype)
        writer.entries = {**entries, **writer.entries}
        writer.finish(prefix)
    finally:
        writer.discard()
