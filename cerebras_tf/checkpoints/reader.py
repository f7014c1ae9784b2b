"""Reads checkpoints, compares them with a model, and finds those of a folder."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

from cerebras_tf.bundle import index
from cerebras_tf.bundle.index import (
    CutFile,
    Entry,
    advice_on_damage,
    all_checkpoints,
    find_cut_files,
    read_index,
    step_of,
)
from cerebras_tf.bundle.writer import BundleWriter
from cerebras_tf.checkpoints.writer import conversion_folder
from cerebras_tf.console.log import log_info
from cerebras_tf.errors import CheckpointError
from cerebras_tf.kernels.half_precision import to_storage
from cerebras_tf.runtime.random_streams import RANDOM_STEP_KEY
from cerebras_tf.user_files import read_text

# Entries that are not variables of a model: the object graph of tf.train.Checkpoint, its counter,
# and the flag of tf.estimator's early stopping hooks.
_NOT_OF_MODELS = (
    "_CHECKPOINTABLE_OBJECT_GRAPH",
    "save_counter/.ATTRIBUTES/VARIABLE_VALUE",
    "signal_early_stopping/STOP",
)
_MAX_NAMES = 5
# Prefixes of the lines of a TensorFlow error about where its graph was built.
_TRACEBACK = ("Graph execution error", "Detected at node", 'File "', "Node: ")
_CONVERTIBLE = ("bfloat16", "float32")


class CheckpointMismatchError(CheckpointError, tf.errors.InvalidArgumentError):
    """A checkpoint has variables of other shapes, or variables that the model lacks.

    On the host, tf.estimator raises InvalidArgumentError for this.
    """

    def __init__(self, *arguments: Any) -> None:
        # TensorFlow raises it again with (node_def, op, message).
        tf.errors.InvalidArgumentError.__init__(self, None, None, arguments[-1])


class MissingVariablesError(CheckpointError, tf.errors.NotFoundError):
    """A checkpoint lacks variables of the model. On the host it is a NotFoundError."""

    def __init__(self, *arguments: Any) -> None:
        tf.errors.NotFoundError.__init__(self, None, None, arguments[-1])


class CheckpointReader:
    """The variables of a checkpoint: iterate `(name, array)`, index by name, test with `in`.

    Args:
      checkpoint: path of a checkpoint such as `model_dir/model.ckpt-100`, or a folder, which means
        its latest.

    Attributes:
      var_names: the names of all variables, sorted.

    Raises:
      CheckpointError: there is no checkpoint there.
    """

    def __init__(self, checkpoint: str) -> None:
        try:
            self._reader = tf.train.load_checkpoint(checkpoint)
            self.var_names = _names(self._reader)
        except (ValueError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"{checkpoint}: must be a checkpoint or a folder with one. Received: {error} Use "
                "the path without .index or .data-00000-of-00001."
            ) from error

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        return ((name, self._reader.get_tensor(name)) for name in self.var_names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self:
            raise KeyError(name)
        return self._reader.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self.var_names

    def __len__(self) -> int:
        return len(self.var_names)

    @staticmethod
    def is_a_checkpoint(path: str) -> bool:
        """Whether `path`, such as `model_dir/model.ckpt-100`, has its index and all shards."""
        return index.is_a_checkpoint(path)

    @staticmethod
    def all_checkpoints(model_dir: str) -> list[str]:
        """Returns the paths of the complete checkpoints in a folder, ordered by step.

        It looks at the files and ignores TensorFlow's list, so copied checkpoints are found.
        """
        return index.all_checkpoints(model_dir)

    @classmethod
    def latest(cls, model_dir: str) -> Optional[str]:
        """Returns the complete checkpoint that the file `checkpoint` of a folder names, or None.

        Training in the folder continues from it.
        """
        found = latest_checkpoint(model_dir)
        return found if found and cls.is_a_checkpoint(found) else None

    @staticmethod
    def before(path: str) -> Optional[str]:
        """Returns the last complete checkpoint of an earlier step in the same folder, or None."""
        return index.checkpoint_before(path)

    @staticmethod
    def step_of(path: str) -> int:
        """Returns the step at the end of a checkpoint's name, or -1."""
        return index.step_of(path)


def open_checkpoint(path: str) -> Any:
    """Returns TensorFlow's reader of a checkpoint; raises CheckpointError if it is unreadable."""
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        _names(reader)
        return reader
    except (tf.errors.OpError, ValueError) as error:
        advice = "Use the prefix of its files, such as model_dir/model.ckpt-100."
        if tf.io.gfile.glob(f"{path}.index") or tf.io.gfile.glob(f"{path}.data-*"):
            advice = advice_on_damage(path)
        raise CheckpointError(
            f"checkpoint {path}: must be a readable TensorFlow checkpoint. "
            f"Received: {first_line(error)}. {advice}"
        ) from error


def _names(reader: Any) -> list[str]:
    """The names of all variables, sorted. TensorFlow opens an index file as an empty checkpoint."""
    found = sorted(reader.get_variable_to_shape_map())
    if not found:
        raise ValueError("no variables.")
    return found


def read_variable(reader: Any, path: str, name: str) -> np.ndarray:
    """Content of a variable; raises CheckpointError if the file is damaged."""
    with checking_damage(path, f"variable {name}"):
        content: np.ndarray = reader.get_tensor(name)
    return content


@contextlib.contextmanager
def checking_damage(path: str, place: str) -> Iterator[None]:
    """Within: errors of reading a part of a checkpoint become CheckpointErrors that name it."""
    try:
        yield
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"checkpoint {path}, {place}: must be undamaged. Received: {first_line(error)}. "
            f"{advice_on_damage(path)}"
        ) from error


def warn_of_cut_files(path: str) -> None:
    """Logs a warning, once per file, for files of a checkpoint that are too short.

    Reading a part of a checkpoint, such as weights without optimizer state, may not notice them.

    Args:
        path: prefix of the checkpoint, or a folder, which means its latest.
    """
    if os.path.isdir(path):
        path = latest_checkpoint(path) or path
    # Reading reports an index that is missing or of an older format.
    with contextlib.suppress(CheckpointError):
        for file in find_cut_files(path):
            _warn_once(path, file)


@functools.cache
def _warn_once(path: str, file: CutFile) -> None:
    before = CheckpointReader.before(path)
    tf.compat.v1.logging.warning(
        "checkpoint %s is damaged: %s has %d of %d bytes and lacks %s. Training cannot resume "
        "from it. Restore the file%s.",
        path,
        os.path.basename(file.path),
        file.size,
        file.needed,
        named(file.names),
        f", or use the checkpoint before it: {before}" if before else "",
    )


def checkpoint_state(folder: str) -> Any:
    """Returns TensorFlow's list of a folder's checkpoints; None if there is none, or it is damaged.

    Raises:
        CheckpointError: it names one of another folder, as in a copy of a folder whose list has
            absolute paths. Training in the copy would remove the original's checkpoints.
    """
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:  # no text
        return None
    if state is None:
        return None
    own = os.path.realpath(folder)
    for path in (state.model_checkpoint_path, *state.all_model_checkpoint_paths):
        if os.path.realpath(os.path.dirname(path)) != own:
            raise CheckpointError(
                f"{os.path.join(folder, 'checkpoint')}: must name checkpoints of its own folder. "
                f"Received: {path}. Set its content to the line model_checkpoint_path: "
                f'"{os.path.basename(state.model_checkpoint_path)}".'
            )
    return state


def latest_checkpoint(folder: str) -> Optional[str]:
    """As tf.train.latest_checkpoint; raises as `checkpoint_state`."""
    checkpoint_state(folder)
    found: Optional[str] = tf.train.latest_checkpoint(folder)
    return found


def latest_listed(model_dir: str, instead: str) -> Optional[str]:
    """The checkpoint that the file `checkpoint` of a folder names, or None.

    If it names none but the folder has complete ones, a warning is logged.

    Args:
        instead: what happens without a checkpoint, for the warning.

    Raises:
        CheckpointError: the file is damaged. TensorFlow would continue as if it did not exist.
    """
    path = os.path.join(model_dir, "checkpoint")
    fault = _fault_of_list(path)
    found: Optional[str] = None if fault else latest_checkpoint(model_dir)
    if found:
        return found
    complete = [prefix for prefix in all_checkpoints(model_dir) if step_of(prefix) > 0]
    line = ""
    if complete:
        line = f'the line model_checkpoint_path: "{os.path.basename(complete[-1])}"'
    if fault:
        raise CheckpointError(
            f"{path}: must be a checkpoint list written by TensorFlow. Received: {fault}. "
            f"{f'Replace its content by {line}.' if complete else 'Delete it to start again.'}"
        )
    if complete:
        tf.compat.v1.logging.warning(
            "%s is complete, but %s does not name it, and %s. To use it, stop and write %s to "
            "that file",
            *(complete[-1], path, instead, line),
        )
    return None


def _fault_of_list(path: str) -> Optional[str]:
    """Why a list of checkpoints is unreadable; None if it is not, or does not exist."""
    state = tf.compat.v1.train.generate_checkpoint_state_proto("", "none", ["none"])
    state.Clear()
    try:
        text_format.Parse(read_text(path), state)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None if state.model_checkpoint_path else "no name of a checkpoint"


def saved_shapes(path: str) -> dict[str, list[int]]:
    """Shapes of the model's variables in a checkpoint, by name.

    Raises:
        CheckpointError: it is unreadable.
    """
    reader = open_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    return {name: shapes[name] for name in unknown_variables(reader, ())}


def unknown_variables(reader: Any, known: Sequence[str]) -> list[str]:
    """Sorted names of the variables of a checkpoint that are not among the known ones."""
    types = reader.get_variable_to_dtype_map()
    names = {name for name, dtype in types.items() if dtype not in (tf.string, tf.variant)}
    unknown = names.difference(known, _NOT_OF_MODELS)
    return sorted(name for name in unknown if not name.startswith(RANDOM_STEP_KEY))


def check_variables(
    path: str,
    wanted: Mapping[str, Sequence[Optional[int]]],
    found: Mapping[str, Sequence[int]],
    unknown: Sequence[str] = (),
) -> None:
    """Compares a checkpoint with a model and lists all differences.

    Args:
        wanted: shapes of the model's variables.
        found: shapes of the checkpoint's variables.
        unknown: names of variables that must not be in the checkpoint.

    Raises:
        CheckpointMismatchError: shapes differ, or there are unknown variables.
        MissingVariablesError: the only differences are missing variables.
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
    if unknown:
        parts.append(f"{len(unknown)} unexpected ({named(unknown)})")
    if not parts:
        return
    advice = "Use the configuration that it was trained with, or another model_dir."
    if unknown or missing:
        advice += (
            " To load only matching variables, set restore_partially in the run configuration."
        )
    # TensorFlow's words for both cases: callers look for them.
    error, reason = MissingVariablesError, "a Variable name or other graph key that is missing"
    if differing or unknown:
        error, reason = CheckpointMismatchError, "a mismatch between the checkpoint and the graph"
    raise error(
        f"checkpoint {path}: must contain the {len(wanted)} variables of the "
        f"model{' and no others' if unknown else ''}. Received: {', '.join(parts)}. {advice} "
        f"(Restoring from checkpoint failed: {reason}.)"
    )


def named(names: Sequence[str]) -> str:
    """The first names, and the number of others."""
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not about where its graph was built."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_TRACEBACK)]
    return (kept or [type(error).__name__])[0]


def read_draws(reader: Any, path: str) -> dict[str, int]:
    """How often random ops have drawn, as read from a checkpoint, by key."""
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith(RANDOM_STEP_KEY)]
    return {name: int(read_variable(reader, path, name)) for name in names}


def find_conversions(path: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """Variables whose dtype must be converted; logs how many.

    TensorFlow restores a variable only from its own dtype, but moments may be stored in bfloat16
    in some runs and in float32 in others.

    Args:
        wanted: dtypes of the model's variables, by name.

    Returns:
        Their dtypes in the model, by name.
    """
    types = open_checkpoint(path).get_variable_to_dtype_map()
    found = {}
    for name, dtype in wanted.items():
        saved = types[name].name if name in types else dtype
        if saved != dtype and {saved, dtype} == set(_CONVERTIBLE):
            found[name] = dtype
    for dtype, other in (_CONVERTIBLE, _CONVERTIBLE[::-1]):
        count = sum(kind == dtype for kind in found.values())
        if count:
            log_info("%d variables of %s are converted from %s to %s", count, path, other, dtype)
    return found


@contextlib.contextmanager
def converted(path: str, wanted: Mapping[str, str]) -> Iterator[str]:
    """Within: the prefix of a checkpoint whose variables have the dtypes of the model.

    This is the given one if its dtypes are right, else a temporary one next to it. Links share the
    files of variables that need no conversion.

    Args:
        wanted: dtypes of the model's variables, by name.

    Raises:
        CheckpointError: the checkpoint is damaged, has a partitioned variable, or no files can be
            written next to it.
    """
    changed = find_conversions(path, wanted)
    if not changed:
        yield path
        return
    entries = read_index(path)
    partitioned = [name for name, entry in entries.items() if entry.dtype and not entry.is_whole]
    if partitioned:
        raise CheckpointError(
            f"checkpoint {path}: must not contain partitioned variables if other variables are "
            f"converted. Received: {partitioned[0]}. Train from it on the wafer without "
            "memoryx_moment_dtype first."
        )
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(conversion_folder(path))
            prefix = os.path.join(folder, os.path.basename(path))
            _convert(path, entries, changed, prefix)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path}: the folder must have disk space for converted variables. "
                f"Received: {error.strerror}. Free disk space, correct the folder's permissions, "
                "or copy the checkpoint to another folder."
            ) from error
        yield prefix


def _convert(
    path: str, entries: Mapping[str, Entry], changed: Mapping[str, str], prefix: str
) -> None:
    """Writes a copy of a checkpoint in which the given variables have other dtypes."""
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
