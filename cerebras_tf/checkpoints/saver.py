"""Checkpoints of a model whose variables are not in the session.

Files are ordinary TensorFlow checkpoints with the model's own variable names, written one shard a
group of variables and joined at the end, so a checkpoint is complete or not there. One that was
restored is never written again. When to save is tf.estimator's decision.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

# Private API of TF 2.15: which names a Saver gives to what it saves has no public accessor.
from tensorflow.python.ops import variables as tf_variables
from tensorflow.python.training.saving import saveable_object_util

from cerebras_tf.bundle.index import Entry, index_path, read_index
from cerebras_tf.bundle.links import link_checkpoint
from cerebras_tf.checkpoints.content import (
    check_content,
    first_line,
    named,
    open_checkpoint,
    read_variable,
    variables_beyond,
    whole,
)
from cerebras_tf.checkpoints.partitions import Key, Partitions
from cerebras_tf.checkpoints.reader import CheckpointReader
from cerebras_tf.checkpoints.storage_dtypes import converted, differing
from cerebras_tf.checkpoints.writer import Shard, unfinished, write_checkpoint, write_shards
from cerebras_tf.errors import CheckpointError, StoreError
from cerebras_tf.memoryx.store import Store, write
from cerebras_tf.runtime.random_streams import RANDOM_STEP_KEY
from cerebras_tf.step.tensorflow_step import TensorFlowStep
from cerebras_tf.swarmx import job, mpi
from cerebras_tf.swarmx.heartbeats import record_checkpoint
from cerebras_tf.tf_session.arrays import for_tensorflow

# A shard holds variables of at most this many bytes together, or a single larger one.
SHARD_BYTES = 1 << 28


class HostSaver(tf.compat.v1.train.Saver):
    """tf.estimator's own Saver for training on the host, with the checks of the wafer's.

    Args:
        config: the run configuration.
    """

    def __init__(self, config: Any) -> None:
        self._restored: Optional[str] = None
        self._partially = config.restore_partially
        super().__init__(
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
        )

    def save(
        self, sess: Any, save_path: str, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Writes a checkpoint, unless it is the one restored; see tf.train.Saver.save.

        Raises:
            CheckpointError: it could not be written; older checkpoints are untouched.
        """
        prefix = _prefix(sess, save_path, global_step)
        if is_kept(prefix, self._restored):
            return prefix
        try:
            return super().save(sess, save_path, global_step, *args, **kwargs)
        except (tf.errors.OpError, ValueError, OSError) as error:
            raise _not_written(prefix, error) from error

    def restore(self, sess: Any, save_path: str) -> None:
        """Loads a checkpoint; see tf.train.Saver.restore.

        Raises:
            CheckpointError: shapes differ, or it holds variables the model lacks; all are listed.
        """
        reader = open_checkpoint(save_path)
        found = reader.get_variable_to_shape_map()
        # Private API of TF 2.15: what a Saver that was given no variables saves.
        saved = tf_variables._all_saveable_objects()
        beyond = variables_beyond(reader, _names(saved))
        missing = _starting_anew(saved, found) if self._partially else []
        if self._partially:
            _report_parts(save_path, [v.op.name for v in missing], beyond)
            beyond = []
        # What is missing otherwise, TensorFlow says itself.
        own = [v for v in saved if isinstance(v, tf.Variable) and v.op.name in found]
        check_content(save_path, {v.op.name: v.shape for v in own}, found, beyond)
        types = {v.op.name: v.dtype.base_dtype.name for v in own}
        with converted(save_path, types) as path:
            if missing:
                _load_parts(sess, path, own, missing)
            else:
                super().restore(sess, path)
        self._restored = save_path


class WaferSaver(tf.compat.v1.train.Saver):
    """Saves and restores the wafer's variables, and what the session holds, in one checkpoint.

    Args:
        store: the wafer's variables.
        find_beside: finds what is saved and lives in the session: the global step, tables, strings;
            asked when the graph is complete, since hooks add variables too.
        config: the run configuration.
        initialise: gives variables of these names their first values, in a session.
        connect: told of a session after a restore.
        phase: context manager that announces a named phase.
        partitions: which of the wafer's variables are parts of one.
        training: the step, in training: a checkpoint must then hold no variables but the model's,
            and says how often random ops have drawn. None outside of it.
        lender: the step of a training around this evaluation, whose variables are read instead of
            the checkpoint that holds just these.
    """

    def __init__(
        self,
        store: Store,
        find_beside: Callable[[], Sequence[Any]],
        config: Any,
        initialise: Callable[[Any, list[str]], None],
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
        self._find_beside = find_beside
        self._beside: list[Any] = []
        self._strict = training is not None
        self._partially = self._strict and config.restore_partially
        self._initialise = initialise
        self._connect = connect
        self._restored: Optional[str] = None
        self._has_told_of_copies = False
        self._meta_graph: Optional[tuple[str, int]] = None  # where it was written, of which version
        super().__init__(
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
        )

    def build(self) -> None:
        """Finds what to save beside the wafer's variables; see tf.train.Saver.build."""
        if not self._is_built:
            # Private API of TF 2.15: a Saver that is built late takes no list of variables.
            self._beside = self._var_list = list(self._find_beside())
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

        Returns:
            Path prefix of the checkpoint.

        Raises:
            CheckpointError: it could not be written; older checkpoints are untouched.
        """
        prefix = _prefix(sess, save_path, global_step)
        if is_kept(prefix, self._restored):
            return prefix

        if not job.is_first():  # it takes part, and the first writes
            for _ in self._shards({}):
                pass
            mpi.swarm().objects(None)
            return prefix
        try:
            self._write(prefix, sess)
        except StoreError:  # says itself what is wrong
            raise
        except (tf.errors.OpError, OSError) as error:
            raise _not_written(prefix, error) from error
        if self._step is not None:
            self._step.saved_as(prefix)
        _tell_launcher(prefix)
        try:
            if write_meta_graph:  # before the checkpoint that it may be copied from is deleted
                self._write_meta_graph(sess.graph, f"{prefix}.{meta_graph_suffix}")
            if write_state:
                self._record(prefix, latest_filename)
        except (tf.errors.OpError, OSError) as error:
            raise _not_written(prefix, error) from error
        mpi.swarm().objects(None)  # others may look for it from here on
        return prefix

    def _write_meta_graph(self, graph: tf.Graph, path: str) -> None:
        """Writes the graph; later saves copy the file: making it takes memory beside a step's."""
        before, self._meta_graph = self._meta_graph, (path, graph.version)
        if before is not None and before[1] == graph.version:
            with contextlib.suppress(FileNotFoundError, shutil.SameFileError):
                shutil.copyfile(before[0], path)
                return
        with graph.as_default():
            self.export_meta_graph(path)

    def _record(self, prefix: str, latest_filename: Optional[str]) -> None:
        # Private API of TF 2.15: the bookkeeping of kept checkpoints has no public entry.
        self._RecordLastCheckpoint(prefix)
        tf.compat.v1.train.update_checkpoint_state(
            os.path.abspath(os.path.dirname(prefix)),  # names relative to it are kept as they are
            os.path.basename(prefix),
            all_model_checkpoint_paths=[os.path.basename(p) for p in self.last_checkpoints],
            latest_filename=latest_filename,
        )
        with contextlib.ExitStack() as stack:
            for old in self._checkpoints_to_be_deleted[:1]:
                with contextlib.suppress(OSError):  # on a full disk it is deleted all the same
                    # What is left where this is killed on the way goes at the next save.
                    stack.enter_context(unfinished(self._CheckpointFilename(old)))
            self._MaybeDeleteOldCheckpoints(meta_graph_suffix="meta")

    def _write(self, prefix: str, session: Any) -> None:
        places = self._wafer_store.linkable_regions()
        beside, rest = self._of_session(session)
        if places is None:
            # Variables are released at once where writing fails, not when their store is closed.
            with contextlib.closing(self._shards(rest)) as shards:
                write_checkpoint(prefix, itertools.chain(beside, shards))
            return
        with unfinished(prefix) as folder:
            for part in write_shards(folder, [*beside, *([rest] if rest else [])]):
                places = {**places, **read_index(part)}
            copied = link_checkpoint(prefix, places, self._partitions.slices)
        if copied and not self._has_told_of_copies:
            self._has_told_of_copies = True
            tf.compat.v1.logging.warning(
                "%s: %.3g GB were copied, for the file system gives its files no second names; "
                "let model_dir and memoryx_dir be on one that does, and a checkpoint is at once",
                prefix,
                copied / 1e9,
            )

    def _of_session(self, session: Any) -> tuple[list[Shard], dict[Key, np.ndarray]]:
        """What the session holds, and how often random ops have drawn: large, and small."""
        large: list[Shard] = []
        rest: dict[Key, np.ndarray] = {}
        if all(isinstance(item, tf.Variable) and item.dtype.is_integer for item in self._beside):
            rest = {v.op.name: session.run(v) for v in self._beside}  # the global step alone
        else:
            large.append(functools.partial(self._save_beside, session))
        if self._step is not None:
            rest.update(self._step.draws_to_save())
        return large, rest

    def _shards(self, rest: dict[Key, np.ndarray]) -> Generator[Shard, None, None]:
        """The wafer's variables, `rest` with the first of them."""
        store = self._wafer_store
        for names in self._groups():
            arrays = store.acquire(names)
            try:
                found = {
                    name: for_tensorflow(array, store.specs[name].type.dtype)
                    for name, array in zip(names, arrays)
                }
                yield {**rest, **self._partitions.stored(found)}
            finally:
                store.release(names)
            rest = {}
        if rest:
            yield rest

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

    def _save_beside(self, session: Any, path: str) -> None:
        names = self.saver_def
        session.run(names.save_tensor_name, {names.filename_tensor_name: path})

    def restore(self, sess: Any, save_path: str) -> None:
        """Loads a checkpoint into the wafer and the session.

        Raises:
            CheckpointError: it is missing or damaged, lacks variables or has other shapes; in
                training also where it holds variables the model lacks. All differences are listed.
        """
        reader = self._partitions.reader(open_checkpoint(save_path))
        missing = self._check(save_path, reader)
        tf.compat.v1.logging.info("Restoring parameters from %s", save_path)
        specs = self._wafer_store.specs
        differing(save_path, {name: spec.type.dtype for name, spec in specs.items()})
        with self._phase("sending weights"):
            self._initialise(sess, missing)
            lent = self._borrowed(save_path)
            places = self._places(save_path)
            for name in self._wafer_store.specs:
                if name in missing or name in lent:
                    continue
                if name not in places or not self._wafer_store.link_source(name, places[name]):
                    write(self._wafer_store, name, read_variable(reader, save_path, name))
        names = self.saver_def
        with whole(save_path, "what the session holds"):
            sess.run(names.restore_op_name, {names.filename_tensor_name: save_path})
        if self._step is not None:
            found = [n for n in reader.get_variable_to_shape_map() if n.startswith(RANDOM_STEP_KEY)]
            self._step.restore_draws({n: int(read_variable(reader, save_path, n)) for n in found})
            self._step.saved_as(save_path)
        store = self._wafer_store
        store.broadcast(filter(store.has_value, store.specs), 0)
        self._restored = save_path
        self._connect(sess)

    def _places(self, path: str) -> dict[str, Entry]:
        """Where a checkpoint's variables lie, as far as they can be read from there."""
        if not os.path.exists(index_path(path)):  # the format of TensorFlow's first versions
            return {}
        return read_index(path, self._partitions.slices)

    def _borrowed(self, path: str) -> set[str]:
        """Names of the variables that a training around lends instead of the checkpoint."""
        store, lender = self._wafer_store, self._lender
        return store.borrow() if lender is not None and lender.is_saved_as(path) else set()

    def _check(self, path: str, reader: Any) -> list[str]:
        """Names of the wafer's variables that a checkpoint lacks, where that is allowed."""
        found = reader.get_variable_to_shape_map()
        specs = self._wafer_store.specs
        wanted: dict[str, Any] = self._partitions.whole(
            {name: list(spec.type.static_shape) for name, spec in specs.items()}
        )
        absent = {name for name in wanted if name not in found} if self._partially else set()
        for variable in self._beside:
            if isinstance(variable, tf.Variable):
                wanted[variable.op.name] = variable.shape
        beyond: list[str] = []
        if self._strict:
            beyond = variables_beyond(reader, [*wanted, *_names(self._beside)])
        if self._partially:
            _report_parts(path, sorted(absent), beyond)
            beyond = []
        kept = {name: shape for name, shape in wanted.items() if name not in absent}
        check_content(path, kept, found, beyond)
        return [name for name in specs if self._partitions.name_of_whole(name) in absent]


def is_kept(prefix: str, restored: Optional[str]) -> bool:
    """Whether a checkpoint is the one restored, which stays as it is: its state was not changed.

    tf.estimator saves anew, under the same name, what it has just restored.
    """
    if restored is None or os.path.abspath(prefix) != os.path.abspath(restored):
        return False
    tf.compat.v1.logging.info("%s stays as it was restored", prefix)
    return True


def _tell_launcher(prefix: str) -> None:
    """Tells the job's launcher of a checkpoint; without that the training goes on as well."""
    try:
        record_checkpoint(job.folder(), prefix)
    except OSError as error:
        tf.compat.v1.logging.warning(
            "%s is whole, but the job's folder could not be written, and --requeue does not count "
            "it: %s. Free disk space or correct the folder's permissions.",
            prefix,
            error,
        )


def _not_written(prefix: str, error: BaseException) -> CheckpointError:
    found = CheckpointReader.latest(os.path.dirname(prefix))
    if found is None or os.path.abspath(found) == os.path.abspath(prefix):
        found = CheckpointReader.before(prefix)
    before = f"{found} is untouched" if found else "none was written before"
    advice = "Free disk space or correct the folder's permissions"
    if isinstance(error, FileNotFoundError):
        advice = f"{error.filename} was deleted while the run used it: leave it, and start again"
    return CheckpointError(
        f"checkpoint {prefix}: must be written whole. Received: {first_line(error)}. {advice}; "
        f"{before}."
    )


def _starting_anew(saved: Sequence[Any], found: Mapping[str, Any]) -> list[Any]:
    """The variables that a checkpoint lacks; none where slices or tables are saved besides."""
    if any(not isinstance(v, tf.Variable) or v._save_slice_info is not None for v in saved):
        return []
    return [v for v in saved if v.op.name not in found]


def _load_parts(session: Any, path: str, own: Sequence[Any], missing: Sequence[Any]) -> None:
    """Loads variables of a checkpoint and starts others anew; adds nothing to the graph."""
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
    """Names in a checkpoint of what a Saver saves, tables and slices of variables included."""
    by_name = saveable_object_util.op_list_to_dict(saved, convert_variable_to_tensor=False)
    parts = saveable_object_util.validate_and_slice_inputs(by_name)
    return [spec.name for part in parts for spec in part.specs]


def _report_parts(path: str, missing: Sequence[str], beyond: Sequence[str]) -> None:
    for names, what in (
        (missing, "lacks %d variables, which start anew"),
        (beyond, "holds %d variables the model lacks, which are left out"),
    ):
        if names:
            text = f"%s {what}: %s"
            tf.compat.v1.logging.warning(text, path, len(names), named(names))
