"""A GPT with 1.6 GB of weights and AdamW state: trains, evaluates, generates; prints what came out.

python -m tests.e2e.larger_than_limit FOLDER files|memory
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.larger_than_memory import peak_gib
from modelzoo.common.config.params import load_params
from modelzoo.common.generate.generate import Request, generate
from modelzoo.common.generate.prediction import open_decoder
from modelzoo.common.generate.sampling import Sampler
from modelzoo.common.train.estimator import make_estimator
from modelzoo.gpt3.model import model_fn

CONFIG = Path(__file__).parents[2] / "configs" / "params_gpt2_small.yaml"
STEPS = 20
TOKENS = 3
SEQUENCE = 64
VOCABULARY = 8192


def params_of(folder, files):
    settings = {
        "train_input.vocab_size": VOCABULARY,
        "train_input.max_sequence_length": SEQUENCE,
        "train_input.batch_size": 2,
        "model.hidden_size": 1024,
        "model.num_hidden_layers": 10,
        "model.num_heads": 16,
        "model.filter_size": 4096,
        "optimizer.max_gradient_norm": 1.0,
        "runconfig.model_dir": str(folder / "model"),
        "runconfig.tf_random_seed": 1,
        "runconfig.mode": "train",
    }
    if files:
        settings["runconfig.memoryx_dir"] = str(folder / "memoryx")
        settings["runconfig.memoryx_ram_gb"] = 0.16
        settings["runconfig.wafer_memory_gb"] = 0.12
    return load_params(CONFIG, settings)


def batches():
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (8, 2, SEQUENCE + 1), np.int32)
    features = {"input_ids": tokens[..., :-1], "input_mask": np.zeros_like(tokens[..., 1:])}
    return tf.data.Dataset.from_tensor_slices((features, tokens[..., 1:]))


class Losses(tf.estimator.SessionRunHook):
    """Keeps the bits of every step's loss."""

    def __init__(self, loss):
        self.seen = []
        self._loss = loss

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.seen.append(float(run_values.results).hex())

    def end(self, session):
        self._loss = None  # and with it the graph


def watched(kept):
    def model_with_hook(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        if mode == tf.estimator.ModeKeys.TRAIN:
            kept.append(Losses(spec.loss))
            spec = spec._replace(training_hooks=[*spec.training_hooks, kept[-1]])
        return spec

    return model_with_hook


def generated(estimator, params):
    prompt = np.arange(4, dtype=np.int32)
    request = Request(prompt, Sampler(0.0), TOKENS)
    with open_decoder(estimator, params, estimator.latest_checkpoint(), use_cs=True) as decoder:
        list(generate(decoder, [request], Numbers(), 1, len(prompt) + TOKENS))
    return [int(token) for token in request.tokens]


class Numbers:
    """Tokens stay numbers, and none ends a text."""

    eos_id = -1

    def decode(self, tokens):
        return ""


def main(folder, where):
    kept = []
    params = params_of(Path(folder), where == "files")
    estimator = make_estimator(watched(kept), params, use_cs=True)
    estimator.train(lambda: batches().repeat(), max_steps=STEPS)
    found = {
        "losses": kept[0].seen,
        "eval": float(estimator.evaluate(batches)["loss"]).hex(),
        "tokens": generated(estimator, params),
        "peak": peak_gib(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
