"""Checkpoints of a model whose variables are not in the session.

Files are ordinary TensorFlow checkpoints with the model's own variable names, written one shard a
group of variables and joined at the end, so a checkpoint is complete or not there. It deliberately
does not decide when to save.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.errors import CheckpointError
from cerebras_tf.estimator.arrays import for_tensorflow
from cerebras_tf.estimator.partitions import Key, Partitions
from cerebras_tf.memoryx.store import Store, write

# A shard holds variables of at most this many bytes together, or a single larger one.
SHARD_BYTES = 1 << 28
# Between prefix and process number in the name of the folder where a checkpoint is written.
_UNFINISHED = "_writing_"


class WaferSaver(tf.compat.v1.train.Saver):
    """Saves and restores the wafer's variables, and the session's own, in one checkpoint.

    Args:
        store: the wafer's variables.
        session_variables: variables that live in the session (the global step).
        max_to_keep: number of checkpoints kept; 0 keeps all.
        phase: context manager that announces a named phase.
        partitions: which of the wafer's variables are parts of one.
    """

    def __init__(
        self,
        store: Store,
        session_variables: Sequence[Any],
        max_to_keep: int,
        phase: Callable[[str], Any] = contextlib.nullcontext,
        partitions: Optional[Partitions] = None,
    ) -> None:
        self._phase = phase
        self._partitions = partitions or Partitions({})
        self._wafer_store = store
        self._session_variables = list(session_variables)
        super().__init__(
            var_list=self._session_variables,
            max_to_keep=max_to_keep,
            save_relative_paths=True,
        )

    def save(
        self,
        sess: Any,
        save_path: str,
        global_step: Optional[Any] = None,
        latest_filename: Optional[str] = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str:
        """Writes a checkpoint; see tf.train.Saver.save.

        Returns:
            Path prefix of the checkpoint.

        Raises:
            CheckpointError: it could not be written; older checkpoints are untouched.
        """
        if global_step is not None and not isinstance(global_step, (int, np.integer)):
            global_step = sess.run(global_step)
        prefix = save_path if global_step is None else f"{save_path}-{int(global_step)}"
        content = {v.op.name: sess.run(v) for v in self._session_variables}
        try:
            write_checkpoint(prefix, self._partitions.stored(self._shards(content)))
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointError(
                f"checkpoint {prefix}: must be written whole. Received: {_first_line(error)}. "
                "Free disk space or correct the folder's permissions; the last checkpoint is "
                "untouched."
            ) from error
        if write_state:
            self._record(prefix, latest_filename)
        if write_meta_graph:
            self.export_meta_graph(f"{prefix}.{meta_graph_suffix}")
        return prefix

    def _record(self, prefix: str, latest_filename: Optional[str]) -> None:
        # Private API of TF 2.15: the bookkeeping of kept checkpoints has no public entry.
        self._RecordLastCheckpoint(prefix)
        tf.compat.v1.train.update_checkpoint_state(
            os.path.abspath(os.path.dirname(prefix)),  # names relative to it are kept as they are
            os.path.basename(prefix),
            all_model_checkpoint_paths=[os.path.basename(p) for p in self.last_checkpoints],
            latest_filename=latest_filename,
        )
        self._MaybeDeleteOldCheckpoints(meta_graph_suffix="meta")

    def _shards(self, content: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        store = self._wafer_store
        for number, names in enumerate(self._groups() or [[]]):
            arrays = store.acquire(names)
            try:
                shard = {
                    name: for_tensorflow(array, store.specs[name].type.dtype)
                    for name, array in zip(names, arrays)
                }
                yield shard if number else {**content, **shard}
            finally:
                store.release(names)

    def _groups(self) -> list[list[str]]:
        """Names of the wafer's variables, as many at a time as make a shard."""
        groups: list[list[str]] = []
        size = 0
        for name, spec in self._wafer_store.specs.items():
            size += spec.type.most_bytes
            if not groups or size > SHARD_BYTES:
                groups.append([])
                size = spec.type.most_bytes
            groups[-1].append(name)
        return groups

    def restore(self, sess: Any, save_path: str) -> None:
        """Loads a checkpoint into the wafer and the session.

        Raises:
            CheckpointError: it is missing or damaged, lacks variables or has other shapes; all
                differences are listed.
        """
        reader = self._partitions.reader(_open(save_path))
        shapes = reader.get_variable_to_shape_map()
        wanted: dict[str, Any] = {
            name: list(spec.type.shape) for name, spec in self._wafer_store.specs.items()
        }
        wanted = self._partitions.whole(wanted)
        for variable in self._session_variables:
            wanted[variable.op.name] = variable.shape.as_list()
        _compare(save_path, wanted, shapes)
        tf.compat.v1.logging.info("Restoring parameters from %s", save_path)
        with self._phase("sending weights"):
            for name in self._wafer_store.specs:
                write(self._wafer_store, name, _read(reader, save_path, name))
        for variable in self._session_variables:
            variable.load(_read(reader, save_path, variable.op.name), sess)


def write_checkpoint(prefix: str, shards: Iterator[Mapping[Key, np.ndarray]]) -> None:
    """Writes arrays as a TensorFlow checkpoint; all of it or nothing appears under the prefix.

    Args:
        prefix: path prefix of the checkpoint's files.
        shards: arrays by variable name, or (name of the whole, slice) of a part; one shard is in
            memory at a time.
    """
    folder = f"{prefix}{_UNFINISHED}{os.getpid()}"
    _remove_leftovers(os.path.dirname(prefix))
    parts = []
    try:
        os.makedirs(folder)
        for number, shard in enumerate(shards):
            part = os.path.join(folder, f"part-{number:05d}")
            _save_shard(part, shard)
            parts.append(part)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=tf.constant(parts), destination_prefix=prefix
                )
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def _open(save_path: str) -> Any:
    try:
        return tf.compat.v1.train.NewCheckpointReader(save_path)
    except (tf.errors.OpError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {save_path}: must be a readable TensorFlow checkpoint. "
            f"Received: {_first_line(error)}. Give the prefix of its files, such as "
            "model_dir/model.ckpt-100."
        ) from error


def _read(reader: Any, path: str, name: str) -> np.ndarray:
    try:
        content: np.ndarray = reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"checkpoint {path}: must be whole. Received, at variable {name}: "
            f"{_first_line(error)}. Restore the file, or remove this checkpoint and name an "
            "earlier one in model_dir/checkpoint."
        ) from error
    return content


def _compare(path: str, wanted: dict[str, list[int]], found: dict[str, list[int]]) -> None:
    """Raises CheckpointError that lists missing variables and other shapes."""
    missing = sorted(name for name in wanted if name not in found)
    differing = sorted(
        f"{name} {found[name]} instead of {shape}"
        for name, shape in wanted.items()
        if name in found and list(found[name]) != shape
    )
    if not missing and not differing:
        return
    parts = []
    if differing:
        parts.append(f"{len(differing)} of another shape ({'; '.join(differing[:3])})")
    if missing:
        parts.append(f"{len(missing)} missing ({', '.join(missing[:3])})")
    raise CheckpointError(
        f"checkpoint {path}: must hold the model's {len(wanted)} variables. "
        f"Received: {', '.join(parts)}. Use the configuration it was trained with, or another "
        "model_dir."
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
