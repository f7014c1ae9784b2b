"""Tries parts of a batch where the whole does not fit, so that a refusal names settings that do.

Micro-batches come first, which make the same step; where a model cannot have them, smaller batches.
A trial calls model_fn with features of fewer rows, and compiles what it returns; nothing is run.
"""

from __future__ import annotations

import copy
import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.console.log import say
from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.estimator.call import Call
from cerebras_tf.estimator.prediction import micro_batches_of
from cerebras_tf.ir.program import Program
from cerebras_tf.quantities import seconds
from cerebras_tf.runtime.capacity import activation_bytes, return_freed_memory
from cerebras_tf.runtime.speeds import measured_speeds
from cerebras_tf.swarmx import job
from cerebras_tf.tf_session.structures import leaves, map_fetches

# Compiles the model of a call for its batch (see Call), with parameters and micro_batches.
Compile = Callable[[Call, Any, int], Program]


@dataclass(frozen=True)
class Trial:
    """A batch that was tried.

    Attributes:
        rows: of the batch.
        parts: batches of a step; as many more of smaller ones, where a model of modelzoo makes the
            step of them.
        micro_batches: parts of the batch that run one after another; 0 where it is smaller instead.
        needed_bytes: what a step takes, or takes at the least where that is too much.
        step_s: seconds a step, predicted; None where the batch does not fit.
    """

    rows: int
    parts: int
    micro_batches: int
    needed_bytes: int = 0
    step_s: Optional[float] = None


@contextmanager
def advising(call: Call, params: Any, compile: Compile) -> Iterator[None]:
    """Within: the refusal of a batch says which parts of it fit, or which smaller batches.

    Args:
        call: the context of the call that trains.
        params: those of the model.
        compile: compiles a model with such parameters.
    """
    try:
        yield
    except BatchCapacityError as error:
        traceback.clear_frames(error.__traceback__)  # which hold the memory of the session
        call.model = None
        gc.collect()
        return_freed_memory()
        advice = advice_on(error, call, params, compile)
        if not advice:
            raise
        raise type(error)(
            f"{error} {advice}", error.needed_bytes, error.available_bytes, error.fixed_bytes
        ) from error


def advice_on(error: BatchCapacityError, call: Call, params: Any, compile: Compile) -> str:
    """What was found by trying parts of a batch, then smaller ones; "" where nothing can help.

    Args:
        error: says what the batch of the call takes.
        call: knows the batch.
        params: those of the model.
        compile: compiles a model with such parameters.
    """
    if job.wafers() > 1 or call.batch is None or error.fixed_bytes >= error.available_bytes:
        return ""
    rows = next((part.shape[0] for part in leaves(call.batch) if _has_rows(part)), None)
    if rows is None or _of_rows(call.batch, rows, rows) is None:
        return ""
    before = micro_batches_of(params)
    already = call.micro_batches // before  # parts that were set, and do not fit
    in_parts = [Trial(rows, before, parts) for parts in parts_of(rows, already)]
    smaller = [
        Trial(rows // parts, before * parts if _is_of_modelzoo(params) else before, 0)
        for parts in parts_of(rows)
    ]
    last: Optional[Trial] = None
    for trials in (in_parts, smaller if already == 1 else []):
        found: Optional[Trial] = None
        for trial in trials:
            batch = _of_rows(call.batch, rows, trial.rows)
            found = _tried(call, params, compile, batch, trial, bool(error.fixed_bytes))
            last = found or last
            if found is None or found.step_s is not None:
                break
        if found is not None:
            break
    return "" if last is None else _told(last, rows, params, error.available_bytes)


def _has_rows(part: Any) -> bool:
    return isinstance(part, tf.TensorSpec) and bool(part.shape.rank)


def types_of(*batch: Any) -> Any:
    """Types of features and labels, where they are tensors."""

    def type_of(part: Any) -> Any:
        return tf.TensorSpec(part.shape, part.dtype) if isinstance(part, tf.Tensor) else part

    return map_fetches(batch, type_of)


def placeholders(batch: Any) -> Any:
    """Features and labels of such types, for a model that is compiled and not run."""
    return map_fetches(batch, lambda part: tf.compat.v1.placeholder(part.dtype, part.shape))


def parts_of(rows: int, parts: int = 1) -> Iterator[int]:
    """Numbers of equal parts to cut rows into, each at least twice the one before.

    Args:
        rows: of the whole.
        parts: the number that comes before the first.
    """
    while parts < rows:
        parts = next((found for found in range(2 * parts, rows) if rows % found == 0), rows)
        yield parts


def _of_rows(batch: Any, before: int, rows: int) -> Optional[Any]:
    """Types of a batch's features and labels with another number of rows; None if not known."""
    for part in leaves(batch):
        if not (isinstance(part, tf.TensorSpec) and part.shape.is_fully_defined()):
            return None

    def of_rows(part: Any) -> Any:
        has_rows = part.shape.rank and part.shape[0] == before
        return tf.TensorSpec([rows, *part.shape[1:]], part.dtype) if has_rows else part

    return map_fetches(batch, of_rows)


def _tried(
    call: Call, params: Any, compile: Compile, batch: Any, trial: Trial, weights_count: bool
) -> Optional[Trial]:
    """The trial with its outcome; None where the model does not take such a batch."""
    say("trying %s", settings(trial, 0, params))
    tried = replace(call, runs=False, model=None, batch=batch, micro_batches=trial.parts)
    changed = with_settings(params, trial)
    try:
        program = compile(tried, changed, max(trial.micro_batches, 1))
        model = tried.model
        assert model is not None
        fault = model.step.session.memory_fault(program)
        if fault is not None:
            raise fault
    except BatchCapacityError as error:
        return replace(trial, needed_bytes=error.needed_bytes)
    except Exception as error:  # whatever model_fn raises: the refusal is what to tell
        say("such a batch cannot be tried: %s", error)
        return None
    finally:
        tried.close()
    needed = activation_bytes(program)
    if weights_count:
        needed += model.store.total_resident_bytes
    step_s = tried.batches_here * program.flops / measured_speeds().flops_per_s
    return replace(trial, needed_bytes=needed, step_s=step_s)


def with_settings(params: Any, trial: Trial) -> Any:
    """Parameters of a model of modelzoo for a trial; those of another model as they are.

    Its model_fn reads the micro-batches there, and weighs the loss of a part by what it counts.
    """
    if not _is_of_modelzoo(params):
        return params
    changed = copy.deepcopy(params)
    if trial.micro_batches:
        if isinstance(changed.get("runconfig"), dict):
            changed["runconfig"]["micro_batches"] = trial.micro_batches
        return changed
    changed["train_input"]["batch_size"] = trial.rows
    changed["optimizer"]["grad_accum_steps"] = trial.parts
    return changed


def settings(trial: Trial, before: int, params: Any) -> str:
    """What to set for a trial.

    Args:
        trial: what is to be had.
        before: rows of the batch in whose place it comes; 0 says nothing of them.
        params: those of the model.
    """
    if trial.micro_batches:
        return f"micro_batches: {trial.micro_batches}"
    if _is_of_modelzoo(params):
        return (
            f"train_input.batch_size: {trial.rows} with optimizer.grad_accum_steps: {trial.parts}"
        )
    instead = f" in place of {before}" if before else ""
    return f"a batch of {trial.rows}{instead}"


def _told(trial: Trial, before: int, params: Any, available_bytes: int) -> str:
    """What was found, in a sentence."""
    told, needed = settings(trial, before, params), f"{trial.needed_bytes / 1e9:.3g} GB"
    there = f"{available_bytes / 1e9:.3g} GB"
    if trial.step_s is None:
        return f"Tried: no part of the batch fits; {told} needs {needed} of the {there}."
    return (
        f"Tried: {told} needs {needed} of the {there}, and an estimated {seconds(trial.step_s)} "
        "or more a step."
    )


def _is_of_modelzoo(params: Any) -> bool:
    """Whether parameters say how many rows a batch has, and how many batches a step."""
    sections = (("train_input", "batch_size"), ("optimizer", "grad_accum_steps"))
    return isinstance(params, dict) and all(
        isinstance(params.get(section), dict) and key in params[section]
        for section, key in sections
    )
