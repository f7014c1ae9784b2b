"""Reads checkpoints and compares what they hold with what a model has."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

from cerebras_tf.bundle.index import (
    CutFile,
    advice_on_damage,
    all_checkpoints,
    find_cut_files,
    step_of,
)
from cerebras_tf.checkpoints.errors import CheckpointLackError, CheckpointMismatchError
from cerebras_tf.checkpoints.reader import CheckpointReader
from cerebras_tf.errors import CheckpointError
from cerebras_tf.runtime.random_streams import RANDOM_STEP_KEY

# Entries beside a model's variables: the graph of objects of tf.train.Checkpoint, its counter, and
# the flag of tf.estimator's early stopping hooks, which says nothing to a training without them.
_BESIDE = (
    "_CHECKPOINTABLE_OBJECT_GRAPH",
    "save_counter/.ATTRIBUTES/VARIABLE_VALUE",
    "signal_early_stopping/STOP",
)
_MOST_NAMED = 5
# How the lines of a TensorFlow error begin that say where its graph was built.
_WHERE_BUILT = ("Graph execution error", "Detected at node", 'File "', "Node: ")


def open_checkpoint(path: str) -> Any:
    """TensorFlow's reader of a checkpoint; raises CheckpointError where it cannot be read."""
    try:
        return tf.compat.v1.train.NewCheckpointReader(path)
    except (tf.errors.OpError, ValueError) as error:
        advice = "Give the prefix of its files, such as model_dir/model.ckpt-100."
        if tf.io.gfile.glob(f"{path}.index") or tf.io.gfile.glob(f"{path}.data-*"):
            advice = advice_on_damage(path)
        raise CheckpointError(
            f"checkpoint {path}: must be a readable TensorFlow checkpoint. "
            f"Received: {first_line(error)}. {advice}"
        ) from error


def read_variable(reader: Any, path: str, name: str) -> np.ndarray:
    """Content of a variable; raises CheckpointError where the file is damaged."""
    with whole(path, f"variable {name}"):
        content: np.ndarray = reader.get_tensor(name)
    return content


@contextlib.contextmanager
def whole(path: str, place: str) -> Iterator[None]:
    """Within: errors of reading a part of a checkpoint become CheckpointErrors that name it."""
    try:
        yield
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"checkpoint {path}, {place}: must be whole. Received: {first_line(error)}. "
            f"{advice_on_damage(path)}"
        ) from error


def tell_of_cut_files(path: str) -> None:
    """Logs, once for each, which files of a checkpoint end too early.

    For what reads a part of a checkpoint, such as weights without optimizer state, and would not
    notice.

    Args:
        path: prefix of the checkpoint, or a folder, which means its latest.
    """
    if os.path.isdir(path):
        path = tf.train.latest_checkpoint(path) or path
    try:
        cut = find_cut_files(path)
    except CheckpointError:  # of an older format, or no index: who reads it says so
        return
    for file in cut:
        _tell_once(path, file)


def find_listed(model_dir: str, instead: str) -> Optional[str]:
    """The checkpoint that the list of a folder names; None where there is none.

    Where no list names a whole one that is there, it logs what is done instead.

    Args:
        model_dir: the folder.
        instead: such as "training begins anew".

    Raises:
        CheckpointError: the list cannot be read. TensorFlow would go on as if there were none.
    """
    path = os.path.join(model_dir, "checkpoint")
    fault = _fault_of_list(path)
    found: Optional[str] = None if fault else tf.train.latest_checkpoint(model_dir)
    if found or "://" in model_dir:
        return found
    there = [prefix for prefix in all_checkpoints(model_dir) if step_of(prefix) > 0]
    line = f'the line model_checkpoint_path: "{os.path.basename(there[-1])}"' if there else ""
    if fault:
        raise CheckpointError(
            f"{path}: must be the list of checkpoints that TensorFlow writes. Received: {fault}. "
            f"{f'Make it {line}, which is whole.' if there else 'Delete it, to begin anew.'}"
        )
    if there:
        tf.compat.v1.logging.warning(
            "%s is whole, but %s does not name it, and %s. To take it, stop and make that file %s",
            there[-1],
            path,
            instead,
            line,
        )
    return None


def _fault_of_list(path: str) -> Optional[str]:
    """What makes a list of checkpoints unreadable; None for a sound one, and for none."""
    state = tf.compat.v1.train.generate_checkpoint_state_proto("", "none", ["none"])
    state.Clear()
    try:
        with open(path, encoding="utf-8") as file:
            text_format.Parse(file.read(), state)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None if state.model_checkpoint_path else "no name of a checkpoint"


@functools.cache
def _tell_once(path: str, file: CutFile) -> None:
    before = CheckpointReader.before(path)
    tf.compat.v1.logging.warning(
        "checkpoint %s is damaged: %s ends after %d of %d bytes, before %s. Only what lies before "
        "is read, and training cannot go on from it. Restore the file%s.",
        path,
        os.path.basename(file.path),
        file.size,
        file.needed,
        named(file.names),
        f", or take the checkpoint before: {before}" if before else "",
    )


def saved_shapes(path: str) -> dict[str, list[int]]:
    """Shapes of the model's variables in a checkpoint, by name.

    Raises:
        CheckpointError: it cannot be read.
    """
    reader = open_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    return {name: shapes[name] for name in variables_beyond(reader, ())}


def variables_beyond(reader: Any, known: Sequence[str]) -> list[str]:
    """Names of the variables of a checkpoint that are not among those known, sorted."""
    types = reader.get_variable_to_dtype_map()
    kept = {name for name, dtype in types.items() if dtype not in (tf.string, tf.variant)}
    beyond = kept.difference(known, _BESIDE)
    return sorted(name for name in beyond if not name.startswith(RANDOM_STEP_KEY))


def check_content(
    path: str,
    wanted: Mapping[str, Sequence[Optional[int]]],
    found: Mapping[str, Sequence[int]],
    beyond: Sequence[str] = (),
) -> None:
    """Compares a checkpoint with a model and lists all differences.

    Args:
        path: prefix of the checkpoint.
        wanted: shapes of the model's variables.
        found: shapes of the checkpoint's.
        beyond: names that must not be there.

    Raises:
        CheckpointMismatchError: shapes differ, or variables are there that must not be.
        CheckpointLackError: nothing but that variables are missing.
    """
    missing = sorted(name for name in wanted if name not in found)
    differing = sorted(
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in found and list(found[name]) != list(shape)
    )
    parts = []
    if differing:
        parts.append(f"{len(differing)} of another shape ({'; '.join(differing[:3])})")
    if missing:
        parts.append(f"{len(missing)} missing ({named(missing)})")
    if beyond:
        parts.append(f"{len(beyond)} the model lacks ({named(beyond)})")
    if not parts:
        return
    advice = "Use the configuration it was trained with, or another model_dir."
    if beyond or missing:
        advice += " restore_partially of the run configuration loads what fits."
    # TensorFlow's words for both cases: callers look for them.
    error, reason = CheckpointLackError, "a Variable name or other graph key that is missing"
    if differing or beyond:
        error, reason = CheckpointMismatchError, "a mismatch between the checkpoint and the graph"
    raise error(
        f"checkpoint {path}: must hold the model's {len(wanted)} variables"
        f"{' and no others' if beyond else ''}. Received: {', '.join(parts)}. {advice} "
        f"(Restoring from checkpoint failed: {reason}.)"
    )


def named(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def first_line(error: BaseException) -> str:
    """What an error says, in a line; TensorFlow's begins with where the graph was built."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_WHERE_BUILT)]
    return (said or [type(error).__name__])[0]
