"""Writes the compile report, and shows predictions beside what was measured in TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import tensorflow as tf

# Private API of TF 2.15: the tensor that reads the step, which TensorFlow's own hooks use.
from tensorflow.python.training import training_util

from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.report.page import floorplan_note, report_page
from cerebras_tf.report.pictures import floorplan_pixels, png
from cerebras_tf.report.record import REPORT
from cerebras_tf.step.program_cache import name_of_mode
from cerebras_tf.wafer.prediction import Prediction, one_line
from cerebras_tf.wafer.validation import measured_rows

TRAINING = "train"
_MOST_ROWS = 24  # of a floor plan's table


def write_report(found: Prediction, here: Sequence[str], folder: str, mode: str) -> Path:
    """Writes the report of a mode; it appears whole or not at all.

    Args:
        found: the prediction.
        here: sentences on the same program on this machine.
        folder: the compile_dir.
        mode: a tf.estimator.ModeKeys; training's is report.html, others are report_<mode>.html.

    Returns:
        The file.
    """
    name = REPORT if mode == TRAINING else REPORT.replace(".html", f"_{name_of_mode(mode)}.html")
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".html.part")
    part.write_text(report_page(found, here, measured_rows(found.system)), encoding="utf-8")
    os.replace(part, path)
    return path


class PredictionHook(tf.estimator.SessionRunHook):
    """Writes `wafer/floorplan`, and beside `global_step/sec` of shown steps what is predicted.

    Args:
        output_dir: folder of the event files.
        shown: the steps.
        prediction: what a real system would do, asked for once, after the first step; None where
            that is not known.
    """

    def __init__(
        self, output_dir: str, shown: ShownSteps, prediction: Callable[[], Optional[Prediction]]
    ) -> None:
        self._output_dir = output_dir
        self._shown = shown
        self._prediction = prediction
        self._found: Optional[Prediction] = None
        self._asked = False
        self._written = 0  # the last step; several runs of the session may be of one

    def begin(self) -> None:
        """Opens the event file shared with TensorFlow's hooks."""
        self._global_step = training_util._get_or_create_global_step_read()
        self._writer = tf.compat.v1.summary.FileWriterCache.get(self._output_dir)

    def before_run(self, run_context: Any) -> Any:
        """Asks for the step."""
        return tf.estimator.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes what is due; see SummaryHook on the step that is fetched along."""
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
        # TensorBoard drops the description of an image that is no tensor.
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
    """What the floor plan shows and what is predicted, in Markdown."""
    rows = "".join(
        f"| {place.name} | {place.x} to {place.x + place.width} | "
        f"{place.y} to {place.y + place.height} | {place.utilisation:.1%} |\n"
        for place in found.floorplan[:_MOST_ROWS]
    )
    more = len(found.floorplan) - _MOST_ROWS
    if more > 0:
        rows += f"| and {more} more | | | |\n"
    return (
        f"A {found.system.name}: {floorplan_note(found)} The darker, the more of its peak a core "
        "does.\n\n| what lies there | columns | rows | of the peak |\n|---|---|---|---|\n"
        f"{rows}\n{one_line(found)}. That is `{_rate_tag(found)}`; `global_step/sec` is what this "
        "machine makes."
    )
