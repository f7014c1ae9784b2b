"""The stages of the benchmark `larger_than_memory` that need TensorFlow."""

from __future__ import annotations

import glob
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.larger_than_memory import flops_of
from benchmarks.training import sgemm_flops_per_s
from cerebras_tf.memoryx.disk_speed import counting_as_free
from modelzoo.common.convert.convert import write_random_model
from modelzoo.common.generate.generate import Request, generate
from modelzoo.common.generate.prediction import log_plan, open_decoder
from modelzoo.common.generate.sampling import Sampler
from modelzoo.common.train.console import quiet_logging
from modelzoo.common.train.estimator import make_estimator

_PRODUCT = 3072  # side of the matrices that the processor's speed is measured with
_PROMPT = 5


class LastCheckpointHook(tf.train.CheckpointSaverHook):
    """Saves once, at the end: a checkpoint at the start would keep what training replaces."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Saves nothing."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Saves nothing."""


class StepHook(tf.train.SessionRunHook):
    """Prints the time of every step and its speed as a share of that of a plain matrix product.

    Args:
        flops: operations of a step.
        started: called when the session is there.
    """

    def __init__(self, flops: float, started: Callable[[], None]) -> None:
        self._flops = flops
        self._started = started
        self._number = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Notes the time."""
        self._started()
        self._sgemm = sgemm_flops_per_s(_PRODUCT)
        self._at = time.monotonic()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Prints a line."""
        elapsed_s = time.monotonic() - self._at
        self._number += 1
        after = sgemm_flops_per_s(_PRODUCT)
        best = (self._sgemm + after) / 2
        speed = self._flops / elapsed_s
        print(
            f"step {self._number}: {elapsed_s:.1f} s, {speed / 1e9:.0f} GFLOP/s, "
            f"{speed / best:.0%} of sgemm around it ({best / 1e9:.0f} GFLOP/s)",
            flush=True,
        )
        self._sgemm, self._at = after, time.monotonic()


def model_fn_of(params: Any) -> Any:
    """The model_fn of a model of the zoo."""
    return importlib.import_module(f"modelzoo.{params.model_name}.model").model_fn


def train_steps(params: Any, steps: int, replaces: bool) -> None:
    """Trains on random tokens.

    Args:
        params: the model's parameters.
        steps: steps.
        replaces: whether the checkpoint that training continues from is deleted once it is loaded,
            so that replaced variables take no disk space.
    """
    quiet_logging(tf)
    model_dir = params.runconfig.model_dir
    before = glob.glob(os.path.join(model_dir, "model.ckpt-*")) if replaces else []

    def started() -> None:
        for path in before:
            os.unlink(path)

    def input_fn() -> Any:
        size = (1, params.train_input.max_sequence_length + 1)
        tokens = np.random.default_rng(1).integers(0, 50257, size, np.int32)
        ids, labels = tokens[:, :-1], tokens[:, 1:]
        features = {"input_ids": ids, "input_mask": np.zeros_like(ids)}
        return tf.data.Dataset.from_tensors((features, labels)).repeat()

    estimator = make_estimator(model_fn_of(params), params, use_cs=True)
    last = LastCheckpointHook(model_dir, save_steps=10**9)
    hooks = [StepHook(flops_of(params), started), last]
    with counting_as_free(sum(os.path.getsize(path) for path in before)):
        estimator.train(input_fn, hooks=hooks, max_steps=steps)


def generate_tokens(params: Any, count: int) -> None:
    """Generates the likeliest tokens after a random prompt, and prints the time of each."""
    checkpoint = tf.train.latest_checkpoint(params.runconfig.model_dir)
    estimator = make_estimator(model_fn_of(params), params, use_cs=True)
    prompt = np.random.default_rng(2).integers(0, 50257, _PROMPT, np.int32)
    request = Request(prompt, Sampler(0.0), count)
    log_plan(estimator, params, 1, _PROMPT + count - 1)
    with open_decoder(estimator, params, checkpoint, use_cs=True) as decoder:
        timed = _Timed(decoder)
        list(generate(timed, [request], _NoTokenizer(), 1, _PROMPT + count))
    seconds = ", ".join(f"{second:.1f}" for second in timed.seconds)
    print(f"generated tokens {request.tokens} in {seconds} s each, the prompt's pass first")


class _NoTokenizer:
    """Tokens stay numbers, and none ends a text."""

    eos_id = -1

    def decode(self, tokens: Any) -> str:
        return ""


class _Timed:
    """A decoder whose passes are timed."""

    def __init__(self, decoder: Any) -> None:
        self.seconds: list[float] = []
        self.start = self._timed(decoder.start)
        self.append = self._timed(decoder.append)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            started = time.monotonic()
            result = function(*args)
            self.seconds.append(time.monotonic() - started)
            return result

        return call


def write_random(params: Any, folder: str) -> None:
    """Writes random weights in Hugging Face's layout, bfloat16, in files of 2 GB."""
    done = write_random_model(params, "the demonstration", folder, "bfloat16", overwrite=True)
    print(f"wrote {done.weights:,} random weights to {folder}")
