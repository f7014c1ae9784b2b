"""Predicts a real system for a compiled model, and writes reports and summaries of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.compiler.workload import workload_of_program
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.ir.program import Program
from cerebras_tf.report.page import floorplan_note, report_page
from cerebras_tf.report.pictures import floorplan_pixels, png
from cerebras_tf.report.record import REPORT
from cerebras_tf.tf_compat.internals import training_util
from cerebras_tf.wafer.pipelined import predict_pipelined, predict_split
from cerebras_tf.wafer.prediction import STREAMING, Prediction, one_line
from cerebras_tf.wafer.streaming import predict_streaming
from cerebras_tf.wafer.system import load_system
from cerebras_tf.wafer.validation import measured_rows
from cerebras_tf.whole_file import write_whole

SYSTEM = "cs2"


def predict_program(program: Program, call: Any, config: Any) -> Prediction:
    """Predicts a CS-2 for a program.

    Args:
        program: as compiled with unlimited memory for activations.
        call: has examples and tokens of a batch, the numbers of systems and micro-batches, and the
            pruned weights.
        config: has the number of replicas; the model is named after its model_dir.
    """
    name = os.path.basename(os.path.normpath(config.model_dir))
    sparse = None if call.model is None else call.model.sparse
    density = {} if sparse is None else sparse.density
    trainable = None if call.model is None else call.weights()
    workload = workload_of_program(program, name, call.examples, call.tokens, density, trainable)
    system, micro_batches = load_system(SYSTEM), call.micro_batches
    if EXECUTION_MODE.get() == STREAMING:
        found = predict_streaming(workload, system, num_csx=call.systems)
    else:  # one system, which computes the batches of several sequentially
        copies = config.multireplica and workload.trains
        found = (predict_split if copies else predict_pipelined)(workload, system)
        micro_batches *= call.systems
    return replace(found, micro_batches=micro_batches if workload.trains else 1)


def replicas_line(found: Prediction) -> str:
    """The line about the replicas of a model that share the batch."""
    if found.mode == STREAMING:
        return (
            "multireplica: available only in pipelined mode (python instead of python-ws); one "
            "replica is trained"
        )
    if found.replicas == 1:
        return (
            "multireplica: one replica is used, because it is the fastest or more "
            "replicas do not fit on the wafer"
        )
    return (
        f"multireplica: {found.replicas} replicas of the model share the wafer, each with "
        f"{found.workload.batch:,} of the {found.replicas * found.workload.batch:,} samples of a "
        "batch; results are equal to those of one replica with the whole batch"
    )


TRAINING = "train"
_MAX_ROWS = 24  # rows of a floor plan's table


def name_of_mode(mode: str) -> str:
    """A tf.estimator.ModeKeys in file names: train, eval or predict."""
    return "predict" if mode == tf.estimator.ModeKeys.PREDICT else mode


def write_report(found: Prediction, here: Sequence[str], folder: str, mode: str) -> Path:
    """Writes the report of a mode, completely or not at all.

    Args:
        here: lines about the same program on this computer.
        mode: a tf.estimator.ModeKeys. The file of training is report.html, others are
            report_<mode>.html.

    Returns:
        The file.
    """
    name = REPORT if mode == TRAINING else REPORT.replace(".html", f"_{name_of_mode(mode)}.html")
    path = Path(folder) / name
    return write_whole(path, report_page(found, here, measured_rows(found.system)))


class PredictionHook(tf.estimator.SessionRunHook):
    """Writes `wafer/floorplan`, and the predicted rate next to `global_step/sec`.

    Args:
        prediction: returns the prediction, or None if there is none. Called once, after the first
            step.
    """

    def __init__(
        self, output_dir: str, shown: ShownSteps, prediction: Callable[[], Optional[Prediction]]
    ) -> None:
        self._output_dir = output_dir
        self._shown = shown
        self._prediction = prediction
        self._found: Optional[Prediction] = None
        self._asked = False
        self._written = 0  # the last step, which may take several runs of the session

    def begin(self) -> None:
        """Opens the event file shared with TensorFlow's hooks."""
        self._global_step = training_util._get_or_create_global_step_read()
        self._writer = tf.compat.v1.summary.FileWriterCache.get(self._output_dir)

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes summaries if they are due; see SummaryHook on the fetched step."""
        step = int(run_values.results)
        if self._asked and not any(step + late in self._shown for late in (0, 1)):
            return
        step = int(run_context.session.run(self._global_step))
        if not self._asked:
            self._asked = True
            self._found = self._prediction()
            if self._found is not None:
                self._write_floorplan(self._found, step)
        if self._found is not None and step in self._shown and step > self._written:
            self._written = step
            self._write_figures(self._found, step)

    def _write_floorplan(self, found: Prediction, step: int) -> None:
        # TensorBoard drops the description of an image in the old format.
        pixels = floorplan_pixels(found)
        height, width, _ = pixels.shape
        metadata = tf.compat.v1.SummaryMetadata(summary_description=_description(found))
        metadata.plugin_data.plugin_name = "images"
        image = tf.make_tensor_proto([b"%d" % width, b"%d" % height, png(pixels)])
        summary = tf.compat.v1.Summary()
        summary.value.add(tag="wafer/floorplan", tensor=image, metadata=metadata)
        self._writer.add_summary(summary, step)

    def _write_figures(self, found: Prediction, step: int) -> None:
        summary = tf.compat.v1.Summary()
        for tag, value in {
            _rate_tag(found): found.steps_per_s,
            "wafer/predicted_utilisation": found.utilisation,
        }.items():
            summary.value.add(tag=tag, simple_value=value)
        self._writer.add_summary(summary, step)


def _rate_tag(found: Prediction) -> str:
    return f"global_step/sec_predicted_for_{found.system.name}"


def _description(found: Prediction) -> str:
    """Markdown text about the floor plan and the prediction."""
    rows = "".join(
        f"| {place.name} | {place.x} to {place.x + place.width} | "
        f"{place.y} to {place.y + place.height} | {place.utilisation:.1%} |\n"
        for place in found.floorplan[:_MAX_ROWS]
    )
    more = len(found.floorplan) - _MAX_ROWS
    if more > 0:
        rows += f"| and {more} more | | | |\n"
    return (
        f"A {found.system.name}: {floorplan_note(found)}\n\n"
        f"| region | columns | rows | of the peak |\n|---|---|---|---|\n{rows}\n"
        f"{one_line(found)}. That is `{_rate_tag(found)}`; "
        "`global_step/sec` is the speed of this computer."
    )
