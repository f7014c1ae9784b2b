"""Training and evaluation on several wafers: one process each, in the same loop of tf.estimator.

All processes make every step together, each with its own batch. They agree on decisions that depend
on clocks, signals and the end of data. The first process logs and writes summaries and checkpoints;
the others take part in the collectives and write nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.replacement import Replacement
from cerebras_tf.errors import CapacityError, ConfigError, DataError, GraphError, UnsupportedOpError
from cerebras_tf.swarmx import job, mpi
from cerebras_tf.swarmx.heartbeats import mistake_file
from cerebras_tf.swarmx.swarm import Alone, Swarm
from cerebras_tf.tf_compat.internals import basic_session_run_hooks, random_seed, writer_cache

_TRAIN, _EVAL = tf.estimator.ModeKeys.TRAIN, tf.estimator.ModeKeys.EVAL
# Errors that another attempt would repeat.
_MISTAKES = (CapacityError, ConfigError, DataError, GraphError, UnsupportedOpError)


def swarm_for(mode: str) -> Swarm:
    """The wafers that run a model together: those of the job in training, else this one alone."""
    return mpi.swarm() if mode == _TRAIN else Alone()


def loading_swarm_for(mode: str) -> Swarm:
    """The wafers that load a model at the same time: all, except in prediction."""
    return mpi.swarm() if mode in (_TRAIN, _EVAL) else Alone()


def refuse_host(use_cs: bool) -> None:
    """Raises ConfigError for training on the host with several wafers."""
    if not use_cs and job.wafers() > 1:
        raise ConfigError(
            f"num_csx: training on the host must run in one process. Received: {job.wafers()} "
            "processes. Start without csrun_wse, or train on the wafers (use_cs=True, no "
            "--device)."
        )


@contextlib.contextmanager
def fail_together() -> Iterator[None]:
    """Within: an error ends this process at once, though others wait for it."""
    try:
        yield
    except Exception as error:
        mpi.fail()
        folder = job.folder()
        if folder is not None and isinstance(error, _MISTAKES):
            mistake_file(folder, job.rank()).touch()
        raise


@contextlib.contextmanager
def same_shuffle_order() -> Iterator[None]:
    """Within: datasets that shuffle without a seed have the same order on all wafers.

    The graph gets the seed that TensorFlow uses for operations with a seed in graphs without one.
    """
    graph = tf.compat.v1.get_default_graph()
    if job.wafers() == 1 or tf.executing_eagerly() or graph.seed is not None:
        yield
        return
    graph.seed = random_seed.DEFAULT_GRAPH_SEED
    try:
        yield
    finally:
        graph.seed = None


class InputContext(tf.distribute.InputContext):
    """Notes whether an input function asks which part of the data is this wafer's."""

    is_used = False

    @property
    def input_pipeline_id(self) -> int:
        """This wafer's rank."""
        self.is_used = True
        return job.rank()


def input_context(input_fn: Any) -> Optional[InputContext]:
    """The context by which an input function selects this wafer's data; None if it takes none."""
    inner = input_fn.func if isinstance(input_fn, functools.partial) else input_fn
    code = getattr(inner, "__code__", getattr(getattr(inner, "__func__", None), "__code__", None))
    if code is None or "input_context" not in code.co_varnames[: code.co_argcount]:
        return None
    return InputContext(job.wafers(), job.rank(), job.wafers())


def shard_batches(result: Any, mode: str, steps: Optional[int], is_sharded: bool = False) -> Any:
    """Every N-th batch of a dataset, beginning with this wafer's rank; N is the number of wafers.

    Args:
        mode: a tf.estimator.ModeKeys; in prediction every wafer gets all batches.
        steps: batches of an evaluation, over all wafers; None for all batches.
        is_sharded: whether the input function has sharded them; else all wafers have the same.

    Raises:
        DataError: it is not a dataset, so batches cannot be sharded or counted.
    """
    if job.wafers() == 1 or mode not in (_TRAIN, _EVAL):
        return result
    if isinstance(result, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
        if mode == _EVAL and steps is not None:
            result = result.take(-(-(steps - job.rank()) // job.wafers()) if is_sharded else steps)
        return result if is_sharded else result.shard(job.wafers(), job.rank())
    if not is_sharded or (mode == _EVAL and steps is not None):
        raise DataError(
            f"input_fn: must return a tf.data.Dataset, which is sharded over {job.wafers()} "
            f"wafers. Received: {type(result).__name__}. Return a dataset. For training, input_fn "
            "can also have an argument input_context and shard the data itself, by "
            "input_pipeline_id."
        )
    return result


class _NoWriter:
    """An event writer that writes nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


_NO_WRITERS = Replacement(
    writer_cache.FileWriterCache, "get", staticmethod(lambda folder: _NoWriter())
)


@contextlib.contextmanager
def first_writes_events() -> Iterator[None]:
    """Within: only the first process of a job writes events."""
    with contextlib.nullcontext() if job.is_first() else _NO_WRITERS.active():
        yield


def scratch_folder() -> str:
    """A temporary folder for files of processes other than the first; removed at exit."""
    folder = tempfile.mkdtemp(prefix=f"cerebras_tf_rank_{job.rank()}_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _FollowingSaver(basic_session_run_hooks.CheckpointSaverHook):
    """A saver's hook on the other wafers: takes part in collectives and writes nothing."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Takes part in the checkpoint of the first step."""
        step = session.run(self._global_step_tensor)
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def _save(self, session: Any, step: int) -> bool:
        for listener in self._listeners:
            listener.before_save(session, step)
        self._get_saver().save(session, self._save_path, global_step=step)
        asked = [listener.after_save(session, step) for listener in self._listeners]
        return any(asked)  # every listener is called


class _AgreedTimer:
    """A timer that triggers on all wafers when it triggers on the first."""

    def __init__(self, own: Any, swarm: Swarm) -> None:
        self._own = own
        self._swarm = swarm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def should_trigger_for_step(self, step: Any) -> bool:
        """Whether the first wafer's timer triggers."""
        due = np.array(bool(self._own.should_trigger_for_step(step)))
        return bool(self._swarm.gather(due)[0])


def coordinate_savers(hooks: Iterable[Any], listeners: Optional[Sequence[Any]]) -> None:
    """Makes savers and their listeners act at the same steps on all wafers."""
    swarm = mpi.swarm()
    if swarm.size == 1:
        return
    savers = [h for h in hooks if isinstance(h, basic_session_run_hooks.CheckpointSaverHook)]
    for saver in savers:
        if not job.is_first():
            saver.__class__ = _FollowingSaver
        for item in [saver, *saver._listeners, *(listeners or ())]:
            timer = getattr(item, "_timer", None)
            if isinstance(timer, basic_session_run_hooks.SecondOrStepTimer):
                item._timer = _AgreedTimer(timer, swarm)


class SumOfMetricsHook(tf.estimator.SessionRunHook):
    """Sums metrics over wafers at the end of an evaluation.

    The variables of tf.metrics are sums and counts. The hook that reads the values runs after all
    other hooks.
    """

    def end(self, session: Any) -> None:
        """Replaces every wafer's sums by the sums over all wafers."""
        swarm = mpi.swarm()
        found = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.METRIC_VARIABLES)
        variables = list(dict.fromkeys(v.ref() for v in found))
        names = [reference.deref().name for reference in variables]
        own = session.run([reference.deref() for reference in variables])
        everyone = swarm.objects(dict(zip(names, own)))
        for reference in variables:
            variable = reference.deref()
            total = sum(np.asarray(theirs[variable.name]) for theirs in everyone)
            variable.load(np.asarray(total, variable.dtype.as_numpy_dtype), session)
