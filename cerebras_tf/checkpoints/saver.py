"""Savers for training on wafer and host, and the hook that decides when to save.

Files are ordinary TensorFlow checkpoints with the model's variable names. They are written in
shards and merged at the end, so a checkpoint is complete or absent. A restored checkpoint is never
written again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.bundle.index import Entry, index_path, read_index
from cerebras_tf.bundle.links import link_checkpoint
from cerebras_tf.checkpoints.partitions import Key, Partitions
from cerebras_tf.checkpoints.reader import (
    CheckpointReader,
    check_variables,
    checking_damage,
    converted,
    find_conversions,
    first_line,
    named,
    open_checkpoint,
    read_draws,
    read_variable,
    unknown_variables,
)
from cerebras_tf.checkpoints.writer import (
    Shard,
    removal,
    unfinished,
    write_checkpoint,
    write_shards,
)
from cerebras_tf.errors import CheckpointError, StoreError
from cerebras_tf.memoryx.store import Store, write
from cerebras_tf.step.tensorflow_step import TensorFlowStep
from cerebras_tf.swarmx import job, mpi
from cerebras_tf.swarmx.heartbeats import record_checkpoint
from cerebras_tf.tf_compat.internals import saveable_object_util, tf_variables
from cerebras_tf.tf_session.structures import for_tensorflow

# A shard has at most this many bytes, or a single larger variable.
SHARD_BYTES = 1 << 28


class MultiplesTimer(tf.compat.v1.train.SecondOrStepTimer):
    """Triggers at multiples of a number of steps.

    TensorFlow's timer counts from the first step of a run, so a resumed run would save and evaluate
    at other steps than an uninterrupted one.
    """

    def __init__(self, every_steps: int) -> None:
        self._every = every_steps
        self._since: Optional[int] = None
        super().__init__(every_steps=every_steps)

    def update_last_triggered_step(self, step: int) -> Any:
        """Records that it was triggered, first of all at the first step."""
        self._since = int(step) - int(step) % self._every
        return super().update_last_triggered_step(step)

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it must be triggered at a step."""
        if self._since is None or step == self.last_triggered_step():
            return self._since is None
        return bool(step >= self._since + self._every)


class SaverHook(tf.compat.v1.train.CheckpointSaverHook):
    """TensorFlow's hook, which saves at steps that do not depend on where a run begins.

    It reads the global step separately only when a checkpoint may be due. TensorFlow assumes that
    a session run makes up to 1,000,000 steps, and so reads it after every run; this assumes the
    largest number so far.

    Args:
      save_steps: steps between two checkpoints; None to count seconds.
      **options: other arguments of TensorFlow's hook.
    """

    def __init__(self, model_dir: str, save_steps: Optional[int] = None, **options: Any) -> None:
        super().__init__(model_dir, save_steps=save_steps, **options)
        self._fetched: Optional[int] = None
        self._steps_per_run = 1
        if save_steps is not None:
            self._timer = MultiplesTimer(save_steps)

    def begin(self) -> None:
        """Opens the file of summaries, to which TensorFlow would write the unfinished graph."""
        with tf.Graph().as_default():
            tf.compat.v1.summary.FileWriterCache.get(self._checkpoint_dir)
        super().begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Writes the graph and the first checkpoint.

        TensorFlow's method prints the graph in Python, which takes seven times as long as str().
        """
        step = session.run(self._global_step_tensor)
        graph = tf.compat.v1.get_default_graph()
        definition = graph.as_graph_def(add_shapes=True)
        if self._save_graph_def:
            path = os.path.join(self._checkpoint_dir, "graph.pbtxt")
            part = f"{path}.tmp{uuid.uuid4().hex}"
            with tf.io.gfile.GFile(part, "w") as file:
                file.write(str(definition))
            tf.io.gfile.rename(part, path, overwrite=True)
        self._summary_writer.add_graph(graph)
        meta_graph = tf.compat.v1.train.export_meta_graph(
            graph_def=definition, saver_def=self._get_saver().saver_def
        )
        self._summary_writer.add_meta_graph(meta_graph)
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Saves if a checkpoint is due."""
        before, self._fetched = self._fetched, int(run_values.results)
        if before is not None:
            self._steps_per_run = max(self._steps_per_run, self._fetched - before)
            self._set_steps_per_run(self._steps_per_run)  # private API of TensorFlow
        super().after_run(run_context, run_values)


class _Saver(tf.compat.v1.train.Saver):
    """A Saver whose old checkpoints are removed even if it is killed before it does so.

    Args:
        config: how many are kept.
        **options: other arguments of TensorFlow's Saver.
    """

    def __init__(self, config: Any, **options: Any) -> None:
        self._removal = contextlib.ExitStack()  # the folders of old checkpoints
        super().__init__(
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
            **options,
        )

    def _RecordLastCheckpoint(self, latest_save_path: str) -> None:  # private API of TensorFlow
        """Marks the old checkpoint before a list is written that does not name it."""
        super()._RecordLastCheckpoint(latest_save_path)
        for old, saved in self._checkpoints_to_be_deleted[:1]:
            if saved <= self._next_checkpoint_time:  # else it is kept
                with contextlib.suppress(OSError):  # a full disk must not prevent deletion
                    self._removal.enter_context(removal(old))


class HostSaver(_Saver):
    """tf.estimator's Saver for training on the host, with the checks of the wafer's."""

    def __init__(self, config: Any) -> None:
        self._restored: Optional[str] = None
        self._partially = config.restore_partially
        super().__init__(config, sharded=True)

    def save(
        self, sess: Any, save_path: str, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Writes a checkpoint, unless it is the one restored; see tf.train.Saver.save.

        Raises:
            CheckpointError: it could not be written. Older checkpoints are not changed.
        """
        prefix = _prefix(sess, save_path, global_step)
        if is_restored(prefix, self._restored):
            return prefix
        try:
            with self._removal:
                return super().save(sess, save_path, global_step, *args, **kwargs)
        except (tf.errors.OpError, ValueError, OSError) as error:
            raise _not_written(prefix, error) from error

    def restore(self, sess: Any, save_path: str) -> None:
        """Loads a checkpoint; see tf.train.Saver.restore.

        Raises:
            CheckpointError: shapes differ, or it has variables the model lacks. All are listed.
        """
        reader = open_checkpoint(save_path)
        found = reader.get_variable_to_shape_map()
        # Private API of TensorFlow: what a Saver without a list of variables saves.
        saved = tf_variables._all_saveable_objects()
        unknown = unknown_variables(reader, _names(saved))
        missing = _missing_variables(saved, found) if self._partially else []
        if self._partially:
            _warn_of_differences(save_path, [v.op.name for v in missing], unknown)
            unknown = []
        # TensorFlow reports variables that are missing.
        own = [v for v in saved if isinstance(v, tf.Variable) and v.op.name in found]
        check_variables(save_path, {v.op.name: v.shape for v in own}, found, unknown)
        types = {v.op.name: v.dtype.base_dtype.name for v in own}
        with converted(save_path, types) as path:
            if missing:
                _load_partially(sess, path, own, missing)
            else:
                super().restore(sess, path)
        self._restored = save_path


class WaferSaver(_Saver):
    """Saves and restores the variables of the wafer and the objects of the session together.

    Args:
        find_session_objects: returns the objects of the session to save: the global step, tables,
            strings. Called when the graph is complete, since hooks add variables too.
        initialize: initializes the variables of these names, in a session.
        connect: called with a session after a restore.
        phase: context manager that reports a named phase.
        training: the step, in training. A checkpoint must then have no variables but the model's,
            and contains how often random ops have drawn.
        lender: the step of the enclosing training. Its variables are read instead of the
            checkpoint if that has just been saved from them.
    """

    def __init__(
        self,
        store: Store,
        find_session_objects: Callable[[], Sequence[Any]],
        config: Any,
        initialize: Callable[[Any, list[str]], None],
        connect: Callable[[Any], None],
        phase: Callable[[str], Any] = contextlib.nullcontext,
        partitions: Optional[Partitions] = None,
        training: Optional[TensorFlowStep] = None,
        lender: Optional[TensorFlowStep] = None,
    ) -> None:
        self._phase = phase
        self._lender = lender
        self._step = training
        self._partitions = partitions or Partitions({})
        self._wafer_store = store
        self._find_session_objects = find_session_objects
        self._session_objects: list[Any] = []
        self._strict = training is not None
        self._partially = self._strict and config.restore_partially
        self._initialize = initialize
        self._connect = connect
        self._restored: Optional[str] = None
        self._has_warned_of_copies = False
        self._meta_graph: Optional[tuple[str, int]] = None  # its path and the version of the graph
        super().__init__(config)

    def build(self) -> None:
        """Finds the objects of the session to save; see tf.train.Saver.build."""
        if not self._is_built:
            # Private API of TensorFlow: a Saver with deferred build takes no list of variables.
            self._session_objects = self._var_list = list(self._find_session_objects())
        super().build()

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
        """Writes a checkpoint, unless it is the one restored; see tf.train.Saver.save.

        Raises:
            CheckpointError: it could not be written. Older checkpoints are not changed.
        """
        prefix = _prefix(sess, save_path, global_step)
        if is_restored(prefix, self._restored):
            return prefix

        if not job.is_first():  # it sends its variables, and rank 0 writes
            for _ in self._shards({}):
                pass
            mpi.swarm().objects(None)
            return prefix
        try:
            self._write(prefix, sess)
        except StoreError:  # its message is complete
            raise
        except (tf.errors.OpError, OSError) as error:
            raise _not_written(prefix, error) from error
        if self._step is not None:
            self._step.saved_as(prefix)
        _report_to_launcher(prefix)
        try:
            if write_meta_graph:  # before it deletes the checkpoint to copy it from
                self._write_meta_graph(sess.graph, f"{prefix}.{meta_graph_suffix}")
            if write_state:
                self._record(prefix, latest_filename)
        except (tf.errors.OpError, OSError) as error:
            raise _not_written(prefix, error) from error
        mpi.swarm().objects(None)  # from here on, other ranks may read it
        return prefix

    def _write_meta_graph(self, graph: tf.Graph, path: str) -> None:
        """Writes the graph. Later saves copy the file, since serializing takes memory."""
        before, self._meta_graph = self._meta_graph, (path, graph.version)
        if before is not None and before[1] == graph.version:
            with contextlib.suppress(FileNotFoundError, shutil.SameFileError):
                shutil.copyfile(before[0], path)
                return
        with graph.as_default():
            self.export_meta_graph(path)

    def _record(self, prefix: str, latest_filename: Optional[str]) -> None:
        with self._removal:
            self._RecordLastCheckpoint(prefix)
            tf.compat.v1.train.update_checkpoint_state(
                os.path.abspath(os.path.dirname(prefix)),  # keeps relative names relative
                os.path.basename(prefix),
                all_model_checkpoint_paths=[os.path.basename(p) for p in self.last_checkpoints],
                latest_filename=latest_filename,
            )
            self._MaybeDeleteOldCheckpoints(meta_graph_suffix="meta")

    def _write(self, prefix: str, session: Any) -> None:
        regions = self._wafer_store.linkable_regions()
        large, small = self._session_shards(session)
        if regions is None:
            # If writing fails, the acquired variables are released at once.
            with contextlib.closing(self._shards(small)) as shards:
                write_checkpoint(prefix, itertools.chain(large, shards))
            return
        with unfinished(prefix) as folder:
            for part in write_shards(folder, [*large, *([small] if small else [])]):
                regions = {**regions, **read_index(part)}
            copied = link_checkpoint(prefix, regions, self._partitions.slices)
        if copied and not self._has_warned_of_copies:
            self._has_warned_of_copies = True
            tf.compat.v1.logging.warning(
                "%s: %.3g GB were copied because the file system does not support hard links. "
                "Saving is faster if model_dir and memoryx_dir are on a file system with hard "
                "links.",
                prefix,
                copied / 1e9,
            )

    def _session_shards(self, session: Any) -> tuple[list[Shard], dict[Key, np.ndarray]]:
        """(large shards, small arrays) of the session's objects and the counts of random ops."""
        large: list[Shard] = []
        small: dict[Key, np.ndarray] = {}
        if all(
            isinstance(item, tf.Variable) and item.dtype.is_integer
            for item in self._session_objects
        ):
            small = {v.op.name: session.run(v) for v in self._session_objects}  # the global step
        else:
            large.append(functools.partial(self._save_session_objects, session))
        if self._step is not None:
            small.update(self._step.draws_to_save())
        return large, small

    def _shards(self, small: dict[Key, np.ndarray]) -> Generator[Shard, None, None]:
        """Shards of the wafer's variables; the first one includes the small arrays."""
        store = self._wafer_store
        for names in self._groups():
            arrays = store.acquire(names)
            try:
                found = {
                    name: for_tensorflow(array, store.specs[name].type.dtype)
                    for name, array in zip(names, arrays)
                }
                yield {**small, **self._partitions.by_key(found)}
            finally:
                store.release(names)
            small = {}
        if small:
            yield small

    def _groups(self) -> list[list[str]]:
        """Names of the wafer's variables, grouped into shards."""
        groups: list[list[str]] = []
        size = 0
        for name, spec in self._wafer_store.specs.items():
            size += spec.type.max_bytes
            if not groups or size > SHARD_BYTES:
                groups.append([])
                size = spec.type.max_bytes
            groups[-1].append(name)
        return groups

    def _save_session_objects(self, session: Any, path: str) -> None:
        names = self.saver_def
        session.run(names.save_tensor_name, {names.filename_tensor_name: path})

    def restore(self, sess: Any, save_path: str) -> None:
        """Loads a checkpoint into the wafer and the session.

        Raises:
            CheckpointError: it is missing or damaged, lacks variables or has other shapes, or in
                training has variables that the model lacks. All differences are listed.
        """
        reader = self._partitions.reader(open_checkpoint(save_path))
        missing = self._check(save_path, reader)
        tf.compat.v1.logging.info("Restoring parameters from %s", save_path)
        specs = self._wafer_store.specs
        find_conversions(save_path, {name: spec.type.dtype for name, spec in specs.items()})
        with self._phase("sending weights"):
            self._initialize(sess, missing)
            borrowed = self._borrowed(save_path)
            regions = self._regions(save_path)
            for name in self._wafer_store.specs:
                if name in missing or name in borrowed:
                    continue
                if name not in regions or not self._wafer_store.link_source(name, regions[name]):
                    write(self._wafer_store, name, read_variable(reader, save_path, name))
        names = self.saver_def
        with checking_damage(save_path, "objects of the session"):
            sess.run(names.restore_op_name, {names.filename_tensor_name: save_path})
        if self._step is not None:
            self._step.restore_draws(read_draws(reader, save_path))
            self._step.saved_as(save_path)
        store = self._wafer_store
        store.broadcast(filter(store.has_value, store.specs), 0)
        self._restored = save_path
        self._connect(sess)

    def _regions(self, path: str) -> dict[str, Entry]:
        """The regions of a checkpoint's files that hold its variables."""
        if not os.path.exists(index_path(path)):  # checkpoint format V1
            return {}
        return read_index(path, self._partitions.slices)

    def _borrowed(self, path: str) -> set[str]:
        """Names of the variables that the enclosing training lends."""
        store, lender = self._wafer_store, self._lender
        return store.borrow() if lender is not None and lender.is_saved_as(path) else set()

    def _check(self, path: str, reader: Any) -> list[str]:
        """Checks the content; returns the variables of the wafer that the checkpoint may lack."""
        found = reader.get_variable_to_shape_map()
        specs = self._wafer_store.specs
        wanted: dict[str, Any] = self._partitions.whole(
            {name: list(spec.type.static_shape) for name, spec in specs.items()}
        )
        absent = {name for name in wanted if name not in found} if self._partially else set()
        for variable in self._session_objects:
            if isinstance(variable, tf.Variable):
                wanted[variable.op.name] = variable.shape
        unknown: list[str] = []
        if self._strict:
            unknown = unknown_variables(reader, [*wanted, *_names(self._session_objects)])
        if self._partially:
            _warn_of_differences(path, sorted(absent), unknown)
            unknown = []
        present = {name: shape for name, shape in wanted.items() if name not in absent}
        check_variables(path, present, found, unknown)
        return [name for name in specs if self._partitions.name_of_whole(name) in absent]


def is_restored(prefix: str, restored: Optional[str]) -> bool:
    """Whether a checkpoint is the one just restored, which tf.estimator would save again."""
    if restored is None or os.path.abspath(prefix) != os.path.abspath(restored):
        return False
    tf.compat.v1.logging.info("%s was restored and is not written again", prefix)
    return True


def _report_to_launcher(prefix: str) -> None:
    """Reports a checkpoint to the job's launcher; training continues if that fails."""
    try:
        record_checkpoint(job.folder(), prefix)
    except OSError as error:
        tf.compat.v1.logging.warning(
            "%s is complete, but --requeue does not use it, because the job's folder could not be "
            "written: %s. Free disk space or correct the folder's permissions.",
            prefix,
            error,
        )


def _reason(error: BaseException) -> str:
    """The text of an error without the name of a temporary file, which the system's errors have."""
    reason = getattr(error, "strerror", None)
    return reason or first_line(error).rpartition("; ")[2]


def _not_written(prefix: str, error: BaseException) -> CheckpointError:
    found = CheckpointReader.latest(os.path.dirname(prefix))
    if found is None or os.path.abspath(found) == os.path.abspath(prefix):
        found = CheckpointReader.before(prefix)
    before = f"{found} is untouched" if found else "there is no earlier checkpoint"
    advice = "Free disk space or correct the folder's permissions"
    if "Too many open files" in str(error):
        advice = "Raise the number of files that a process may open (ulimit -n)"
    if isinstance(error, FileNotFoundError):
        advice = f"{error.filename} was deleted during the run; start again"
    return CheckpointError(
        f"checkpoint {prefix}: must be written completely. Received: {_reason(error)}. "
        f"{advice}; {before}."
    )


def _missing_variables(saved: Sequence[Any], found: Mapping[str, Any]) -> list[Any]:
    """The variables that a checkpoint lacks; none if slices or tables are saved too."""
    if any(not isinstance(v, tf.Variable) or v._save_slice_info is not None for v in saved):
        return []
    return [v for v in saved if v.op.name not in found]


def _load_partially(session: Any, path: str, own: Sequence[Any], missing: Sequence[Any]) -> None:
    """Loads variables of a checkpoint and initializes others; adds nothing to the graph."""
    reader = open_checkpoint(path)
    for variable in own:
        value = reader.get_tensor(variable.op.name)
        session.run(variable.initializer, {variable.initializer.inputs[1]: value})
    session.run([variable.initializer for variable in missing])


def _prefix(session: Any, save_path: str, global_step: Any) -> str:
    if global_step is None:
        return save_path
    if not isinstance(global_step, (int, np.integer)):
        global_step = session.run(global_step)
    return f"{save_path}-{int(global_step)}"


def _names(saved: Sequence[Any]) -> list[str]:
    """Names in a checkpoint of saved objects, including tables and slices of variables."""
    by_name = saveable_object_util.op_list_to_dict(saved, convert_variable_to_tensor=False)
    parts = saveable_object_util.validate_and_slice_inputs(by_name)
    return [spec.name for part in parts for spec in part.specs]


def _warn_of_differences(path: str, missing: Sequence[str], unknown: Sequence[str]) -> None:
    for names, what in (
        (missing, "has no values for %d variables, which are initialized"),
        (unknown, "has %d variables that are not in the model, which are ignored"),
    ):
        if names:
            text = f"%s {what}: %s"
            tf.compat.v1.logging.warning(text, path, len(names), named(names))
