"""Runs transformers models by their params."""

from __future__ import annotations

from cerebras_tf.errors import ConfigError
from modelzoo.common.train import torch_engine
from modelzoo.common.train.console import logger, show_progress
from modelzoo.hugging_face.data import make_batches
from modelzoo.hugging_face.model import (
    count_parameters,
    input_names,
    loss_function,
    make_module,
    score_function,
)
from modelzoo.hugging_face.optimizers import make_optimizer


def run_mode(mode, params):
    """Runs a mode of the command line."""
    show_progress()
    if mode == "predict":
        raise ConfigError(
            f"mode: {params.model_name} has no mode predict. Received: predict. Run `cerebras-tf "
            "generate` for text, or eval."
        )
    if mode in ("train", "train_and_eval"):
        train(params, mode == "train_and_eval")
    else:
        evaluate(params, every=mode == "eval_all")


def train(params, evaluates):
    """Trains up to the last step, from the newest checkpoint of model_dir.

    Args:
        evaluates: whether `eval_input` is evaluated at every checkpoint.
    """
    folder = params.runconfig.model_dir
    module = make_module(params)
    names = input_names(module)
    first = (params.train_input.skip_steps or 0) * params.batches_per_step
    batches = make_batches(params.train_input, True, names, first)
    newest = torch_engine.checkpoints_of(folder)[-1:]
    step = torch_engine.step_of(newest[0]) if newest else 0
    end = torch_engine.last_step(params, step, batches.batches_per_epoch)
    logger().info("%s: %s parameters", params.model_name, f"{count_parameters(module):,}")
    if step >= end:
        logger().info("nothing to train: %s is at step %d of %d", folder, step, end)
        return
    eval_batches = make_batches(params.eval_input, False, names) if evaluates else None
    optimizer, scheduler, update = make_optimizer(params, module)
    torch_engine.train(
        params,
        module,
        batches,
        end,
        loss_function(params),
        optimizer,
        scheduler,
        update,
        eval_batches,
    )
    if evaluates:
        report(params, module, end)


def evaluate(params, every=False):
    """Evaluates the newest checkpoint, or that of checkpoint_path, or all of model_dir."""
    folder = params.runconfig.model_dir
    chosen = torch_engine.checkpoints_of(folder) if every else [torch_engine.chosen(params)]
    for checkpoint in chosen:
        module = make_module(params)
        step = 0
        if checkpoint is not None:
            logger().info("evaluating %s", checkpoint)
            torch_engine.load_weights(module, checkpoint)
            step = torch_engine.step_of(checkpoint)
        report(params, module, step)


def report(params, module, step):
    """Evaluates a model with its scores."""
    batches = make_batches(params.eval_input, False, input_names(module))
    found = torch_engine.score(params, module, batches, score_function(params))
    torch_engine.report_scores(params, found, step)


def generate(args, params):
    """Continues prompts on the console; see commands/generate.py."""
    from modelzoo.hugging_face import generation

    show_progress()
    generation.run(args, params)
