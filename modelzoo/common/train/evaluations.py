"""Evaluations during training: keeps the best checkpoint, and stops training early.

Metrics are stored in ``eval/evaluations.json`` of the model folder, so that a resumed run decides
as an uninterrupted one.
"""

import json
import math
import os
from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.api import CheckpointReader, find_cut_files, job
from cerebras_tf.errors import CheckpointError, ConfigError, DataError
from cerebras_tf.user_files import read_json, read_text, reason
from cerebras_tf.whole_file import write_whole
from modelzoo.common.files.path_advice import CHECKPOINT_END
from modelzoo.common.model_dir.checkpoint_files import (
    CARRIED,
    all_checkpoints,
    copy_checkpoint,
    find_checkpoint,
    remove_checkpoint,
    step_of,
)
from modelzoo.common.model_dir.source_files import copy_between

# Metrics that training shows too, with the tag of both; a chart of TensorBoard is that of a tag.
CHARTED = {"eval/lm_perplexity": "perplexity", "eval/bits_per_byte": "bits_per_byte"}
BEST = "best"  # folder in model_dir
# Files of model_dir that are copied with the best checkpoint, for training or converting it.
COPIED = (*CARRIED, "params.yaml")


def chart_with_training(model_dir, step, found):
    """Writes the metrics of an evaluation that training shows too, into the chart of training."""
    values = [
        tf.Summary.Value(tag=CHARTED[key], simple_value=float(value))
        for key, value in found.items()
        if key in CHARTED
    ]
    if values and job.is_first():
        with tf.Graph().as_default():
            writer = tf.summary.FileWriterCache.get(os.path.join(model_dir, "eval"))
            writer.add_summary(tf.Summary(value=values), step)
            writer.flush()


class Evaluations(tf.estimator.Exporter):
    """Receives every evaluation of tf.estimator.train_and_evaluate; keeps the best, ends training.

    Args:
        step: global step that training continues from; evaluations of later steps are dropped.

    Attributes:
        stopped: why training ended early, a sentence; None while it continues.
    """

    def __init__(self, runconfig, step):
        self._runconfig = runconfig
        self._folder = runconfig.model_dir
        self._path = Path(runconfig.model_dir, "eval", "evaluations.json")
        self._keep = runconfig.keep_best_checkpoint
        self._stopping = runconfig.early_stopping
        self._metrics = {at: found for at, found in read(self._path).items() if at <= step}
        self._lost = None  # step of the best checkpoint, once its loss is logged
        self.stopped = self._reason()

    @property
    def name(self):
        """The exporter's name for tf.estimator."""
        return "evaluations"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        """Records the metrics of a checkpoint; see tf.estimator.Exporter."""
        found = {key: float(value) for key, value in eval_result.items()}
        step = int(found.pop("global_step"))
        self.check_metrics(found)
        chart_with_training(self._folder, step, found)
        self._metrics[step] = found
        if job.is_first():
            self._write(checkpoint_path, step, found)
        self.stopped = self._reason()

    def _write(self, checkpoint_path, step, found):
        tree = {str(at): metrics for at, metrics in sorted(self._metrics.items())}
        write_whole(self._path, json.dumps(tree, indent=2) + "\n")
        if self._keep and best_step(self._values(self._keep), self._keep.mode) == step:
            self._copy_best(checkpoint_path, step)
        else:
            self.keep_best()

    def lacks(self, step, end):
        """Returns whether the checkpoint to continue from should have an evaluation but has none.

        Checkpoints between two evaluations and the one of `resume_from` have none. With
        `throttle_secs` only the last one must have it; with `restore_partially` another model may
        continue.
        """
        given = self._runconfig
        sure = step % given.save_checkpoints_steps == 0 and not given.throttle_secs
        due = step > 0 and (sure or step >= end) and not given.restore_partially
        began = Path(self._folder, "params.yaml").exists() and step != self._resumed_step()
        return due and began and step not in self._metrics and not self.stopped

    def _resumed_step(self):
        """Returns the step of resume_from; None without it, or if it does not exist any more."""
        if not self._runconfig.resume_from:
            return None
        try:
            return step_of(find_checkpoint(self._runconfig.resume_from, "resume_from"))
        except (CheckpointError, ConfigError):
            return None

    def keep_best(self):
        """Copies the best checkpoint that exists, if the best one is not kept.

        This happens if the rule has changed, or the best checkpoint was deleted before it was
        copied or is damaged.
        """
        if not self._keep or not job.is_first():
            return
        values, folder = self._values(self._keep), os.path.join(self._folder, BEST)
        kept = complete_checkpoints(folder)
        best = best_step(values, self._keep.mode)
        if best is None or best in kept:
            return
        there = complete_checkpoints(self._folder)
        left = {at: value for at, value in values.items() if at in there or at in kept}
        found = best_step(left, self._keep.mode)
        damaged = any(Path(folder).glob(f"model.ckpt-{best}.*"))
        if best in there and damaged:
            name = os.path.join(folder, os.path.basename(there[best]))
            tf.logging.warning("%s is damaged and is copied again from %s", name, there[best])
        elif best not in there and best != self._lost:
            self._lost = best
            tf.logging.warning(
                "the best evaluation so far, %s = %.6g at step %d, has no %s any more: best/ "
                "contains %s",
                self._keep.metric,
                values[best],
                best,
                "complete checkpoint" if damaged else "checkpoint",
                "none until there is a better one" if found is None else f"that of step {found}",
            )
        if found in there and found not in kept:
            self._copy_best(there[found], found)

    def check_metrics(self, names):
        """Raises a ConfigError if a metric that decides is not among the names."""
        for key, rule in self.rules.items():
            if rule.metric not in names:
                raise ConfigError(
                    f"runconfig.{key}.metric: must be one of {', '.join(sorted(names))}. Received: "
                    f"{rule.metric!r}. Use one of them."
                )

    @property
    def rules(self):
        """The rules (KeepBest, EarlyStopping), by key of runconfig."""
        rules = {"keep_best_checkpoint": self._keep, "early_stopping": self._stopping}
        return {key: rule for key, rule in rules.items() if rule}

    def _values(self, rule):
        return {
            at: found[rule.metric] for at, found in self._metrics.items() if rule.metric in found
        }

    def _copy_best(self, prefix, step):
        folder = os.path.join(self._folder, BEST)
        for name in COPIED:
            source = Path(self._folder, name)
            if source.exists():
                write_whole(Path(folder, name), read_text(source))
        copy_between(self._folder, folder)
        kept = os.path.basename(prefix)
        copy_checkpoint(prefix, folder, kept)
        names = {CHECKPOINT_END.sub("", path.name) for path in Path(folder).glob("model.ckpt-*.*")}
        for other in names - {kept}:
            remove_checkpoint(os.path.join(folder, other))
        metric = self._keep.metric
        tf.logging.info(
            "best so far: %s = %.6g at step %d", metric, self._metrics[step][metric], step
        )

    def _reason(self):
        rule = self._stopping
        if rule is None:
            return None
        values = self._values(rule)
        best, waited = last_improvement(values, rule.mode, rule.min_delta)
        if waited < rule.patience:
            return None
        more = f" by more than {rule.min_delta:g}" if rule.min_delta else ""
        since = "is not a number" if best is None else f"has not improved{more} since step {best}"
        value = "" if best is None else f" ({values[best]:.6g})"
        return (
            f"early stopping at step {max(values)}: {rule.metric} {since}{value}, for {waited} "
            "evaluations"
        )


class EarlyStopHook(tf.estimator.SessionRunHook):
    """Ends training at the step that was evaluated last, once the evaluations stop improving."""

    def __init__(self, evaluations):
        self._evaluations = evaluations

    def after_run(self, run_context, run_values):
        """Asks the loop to stop; savers, and with them evaluations, come before this hook."""
        if self._evaluations.stopped:
            run_context.request_stop()

    def end(self, session):
        """Logs why training ended."""
        if self._evaluations.stopped:
            tf.logging.info("%s", self._evaluations.stopped)


def complete_checkpoints(folder):
    """Returns the complete checkpoints of a folder, by step."""
    whole = filter(is_complete, all_checkpoints(folder))
    return {CheckpointReader.step_of(os.path.basename(prefix)): prefix for prefix in whole}


def is_complete(prefix):
    """Returns whether the data files of a checkpoint have the sizes in its index."""
    try:
        return not find_cut_files(prefix)
    except CheckpointError:
        return False


def best_step(values, mode):
    """Returns the step with the best value, the first of equals; None without a number.

    Args:
        values: metric by step; NaN is never the best.
        mode: ``min`` or ``max``.
    """
    return last_improvement(values, mode, 0.0)[0]


def last_improvement(values, mode, min_delta):
    """Returns the step of the last improvement, and the number of later evaluations.

    Args:
        values: metric by step; NaN is no improvement.
        mode: ``min`` or ``max``.
    """
    sign = 1.0 if mode == "max" else -1.0
    best, best_value, waited = None, -math.inf, 0
    for step, value in sorted(values.items()):
        if sign * value > best_value + (min_delta if best is not None else 0.0):
            best, best_value, waited = step, sign * value, 0
        else:
            waited += 1
    return best, waited


def read(path):
    """Returns the metrics of earlier evaluations, by step; {} without any."""
    try:
        return {int(step): found for step, found in read_json(path, {str: {str: float}}).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: must contain metrics by step. Received: {reason(error)}. Move the file away."
        ) from error
