"""Adds our hooks to a training run on host or wafer.

The order is tf.estimator's: savers, the model's chief hooks, the hooks given to `train`, the guard
against NaN, the model's hooks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.checkpoints.saver import SaverHook
from cerebras_tf.console.log import log_info
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.console.traffic import of_files, of_wafers
from cerebras_tf.estimator.call import CallContext
from cerebras_tf.estimator.console_hooks import ProfileHook, ProgressHook, SummaryHook, TrafficHook
from cerebras_tf.estimator.hooks import (
    FiniteStateListener,
    LossWatch,
    NanGuardHook,
    PerformanceSummaryHook,
)
from cerebras_tf.estimator.prediction import PredictionHook, predict_program, replicas_line
from cerebras_tf.frontend.description import describe
from cerebras_tf.swarmx import job
from cerebras_tf.tf_session.structures import leaves
from cerebras_tf.wafer.prediction import Prediction


def add_guards(spec: Any, given: list[Any], listeners: Any, call: CallContext, config: Any) -> Any:
    """Adds guards against NaN to a training run.

    Args:
        given: hooks given to `train`.
        listeners: saving listeners given to `train`.

    Returns:
        (spec, hooks, saving listeners).
    """
    savers = [
        hook
        for hook in [*given, *spec.training_hooks, *spec.training_chief_hooks]
        if isinstance(hook, tf.compat.v1.train.CheckpointSaverHook)
    ]
    watch = LossWatch(spec.loss)
    chief: list[Any] = [watch]
    if not savers and (config.save_checkpoints_secs or config.save_checkpoints_steps):
        # tf.estimator would insert its saver before the watch, and save before the loss is checked.
        savers = [
            SaverHook(
                config.model_dir,
                save_secs=config.save_checkpoints_secs,
                save_steps=config.save_checkpoints_steps,
                scaffold=spec.scaffold,
                save_graph_def=config.checkpoint_save_graph_def,
            )
        ]
        chief.extend(savers)
    if savers:
        guard = FiniteStateListener(call.not_finite_weights, watch, config.model_dir)
        listeners = [guard, *(listeners or [])]
    spec = spec._replace(training_chief_hooks=[*chief, *spec.training_chief_hooks])
    return spec, [*given, NanGuardHook(spec.loss, config.model_dir)], listeners


def add_reports(spec: Any, call: CallContext, config: Any) -> Any:
    """The spec with console lines, summaries, rates and peak memory.

    Args:
        config: the run configuration, as it was given.
    """
    written: list[Any] = _profiling(call, config)
    if config.save_summary_steps:
        model = call.model
        if model is not None and model.step.swarm.size > 1 and model.has_own_summaries:
            log_info(
                "summaries: scalars, histograms and images show the batch of the first wafer; the "
                "loss, gradients and cross_wafer_sum are over all wafers"
            )
        shown = ShownSteps(config.save_summary_steps, call.last_step, call.steps)
        memory = call.memory_high_water if call.use_cs else None
        examples, tokens = call.per_step(call.examples), call.per_step(call.tokens)
        written.append(SummaryHook(spec.scaffold, config.model_dir, shown))
        written.append(
            PerformanceSummaryHook(
                config.model_dir, shown, examples, tokens, memory, clock=call.clock
            )
        )
        if call.model is not None:
            prediction = functools.partial(_prediction, call, config)
            written.append(PredictionHook(config.model_dir, shown, prediction))
    written.extend(_traffic(call, config))
    spec = spec._replace(training_chief_hooks=[*spec.training_chief_hooks, *written])
    return add_progress_lines(spec, call, config)


def _profiling(call: CallContext, config: Any) -> list[Any]:
    """The hook that profiles, if the run configuration enables it."""
    steps = config.profile
    if steps is None or not job.is_first():
        return []
    if call.model is None or call.model.step.profiler is None:
        log_info("profile: only training on the wafer is profiled")
        return []
    return [ProfileHook(call.model.step.profiler, steps, config.model_dir)]


def _traffic(call: CallContext, config: Any) -> Iterator[TrafficHook]:
    """Hooks for traffic between memory and files, and between wafers."""
    if call.model is None:
        return
    folder = config.model_dir if config.save_summary_steps else None
    every = config.save_summary_steps or 100
    store, swarm = call.model.store, call.model.step.swarm
    if config.memoryx_dir is not None:
        yield TrafficHook(folder, every, lambda: store.io_stats, of_files, call.clock)
    if swarm.size > 1 and config.credentials_path is None:  # else it is between the servers
        yield TrafficHook(folder, every, lambda: swarm.traffic, of_wafers, call.clock)


def _prediction(call: CallContext, config: Any) -> Optional[Prediction]:
    """The prediction of a real system; None if there is none."""
    assert call.model is not None
    program = call.model.step.source.unfitted
    return None if program is None else predict_program(program, call, config)


def add_progress_lines(spec: Any, call: CallContext, config: Any) -> Any:
    """The spec with console lines, if the run configuration enables them; see add_reports."""
    if not config.log_step_count_steps:
        return spec
    shown = ShownSteps(config.log_step_count_steps, call.last_step, call.steps)
    lines = ProgressHook(
        spec.loss, shown, call.per_step(call.tokens), lambda: _description(call, config), call.clock
    )
    return spec._replace(training_hooks=[lines, *spec.training_hooks])


def _description(call: CallContext, config: Any) -> str:
    """The lines about a model; with multireplica, also the number of replicas."""
    found = None
    if call.model is not None and config.multireplica:
        found = _prediction(call, config)
    step = None if call.model is None else call.model.step
    lines = [describe(trained_parameters(), call.tokens, config.precision, step)]
    return "\n".join(lines if found is None else [*lines, replicas_line(found)])


def trained_parameters() -> int:
    """Number of trained parameters of the model in the default graph."""
    return sum(
        math.prod(variable.shape.as_list()) for variable in tf.compat.v1.trainable_variables()
    )


def sizes(features: Any) -> tuple[Optional[int], Optional[int]]:
    """(examples, tokens) of a batch, if shapes are known; tokens are those of `input_ids`."""
    shapes = [t.shape.as_list() for t in leaves(features) if _has_rows(t)]
    examples = shapes[0][0] if shapes else None
    ids = features.get("input_ids") if isinstance(features, dict) else None
    tokens = ids.shape.num_elements() if isinstance(ids, tf.Tensor) else None
    return examples, tokens


def _has_rows(item: Any) -> bool:
    return isinstance(item, tf.Tensor) and bool(item.shape.rank)
