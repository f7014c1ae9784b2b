"""Runs transformers models by their params."""

from __future__ import annotations

from cerebras_tf.errors import CheckpointError, ConfigError
from modelzoo.common.data.prepared import check_labels
from modelzoo.common.train import torch_engine
from modelzoo.common.train.console import logger, show_progress
from modelzoo.common.train.trained_on import follow_data
from modelzoo.hugging_face import scoring
from modelzoo.hugging_face.data import make_batches
from modelzoo.hugging_face.export import export_trained, write_export
from modelzoo.hugging_face.metrics import scores_of
from modelzoo.hugging_face.model import (
    LoadedModel,
    count_parameters,
    input_names,
    loss_function,
    score_function,
)
from modelzoo.hugging_face.optimizers import make_optimizer
from modelzoo.hugging_face.prediction import check_prediction, predict


def run_mode(mode, params):
    """Runs a mode of the command line."""
    show_progress()
    sections = (params.train_input, params.eval_input, params.predict_input)
    check_labels(filter(None, sections), params.label_count)
    trains = mode in ("train", "train_and_eval")
    if trains and params.runconfig.checkpoint_path:
        raise ConfigError(
            "runconfig.checkpoint_path: has no effect in training. Received: "
            f"{params.runconfig.checkpoint_path}. Set model.pretrained to the folder that "
            "`cerebras-tf convert export` writes of it."
        )
    if params.runconfig.validate_only or params.runconfig.compile_only:
        check(mode, params)
    elif mode == "predict" and params.model_name == "hf_causal_lm":
        scoring.predict(params)
    elif mode == "predict":
        predict(params)
    elif trains:
        train(params, mode == "train_and_eval")
    else:
        evaluate(params, every=mode == "eval_all")


def check(mode, params):
    """Compiles what a mode runs, on its first batch."""
    if mode in ("train", "train_and_eval"):
        model = LoadedModel(params)
        show_size(params, model.module)
        batch = make_batches(params.train_input, True, input_names(model.module)).batch(0)
        optimizer, _, update = make_optimizer(params, model.module)
        loss, weights = loss_function(params), model.weights()
        torch_engine.check(params, model.module, batch, loss, weights, optimizer, update)
    if mode == "predict":
        if params.model_name == "hf_causal_lm":
            raise ConfigError(
                "runconfig.compile_only: must be used with another mode, because the lengths of "
                "completions are not known. Received: predict."
            )
        check_prediction(params)
    elif mode != "train":
        model = LoadedModel(params)
        names = input_names(model.module)
        batch = make_batches(params.eval_input, False, names).batch(0)
        torch_engine.check(params, model.module, batch, score_function(params), model.weights())


def train(params, evaluates):
    """Trains up to the last step, from the newest checkpoint of model_dir, and exports the model.

    Args:
        evaluates: whether `eval_input` is evaluated at every checkpoint.
    """
    folder = params.runconfig.model_dir
    model = LoadedModel(params)
    names = input_names(model.module)
    first = (params.train_input.skip_steps or 0) * params.batches_per_step
    batches = make_batches(params.train_input, True, names, first)
    newest = torch_engine.checkpoints_of(folder)[-1:]
    step = torch_engine.step_of(newest[0]) if newest else 0
    end = torch_engine.last_step(params, step, batches.batches_per_epoch)
    show_size(params, model.module)
    if step >= end:
        logger().info("nothing to train: %s is at step %d of %d", folder, step, end)
        export_trained(params, newest[0], again=False)
        return
    eval_batches = make_batches(params.eval_input, False, names) if evaluates else None
    optimizer, scheduler, update = make_optimizer(params, model.module)
    if torch_engine.is_first():
        follow_data(params, step)
    torch_engine.train(
        params,
        model.trainee,
        batches,
        end,
        loss_function(params),
        optimizer,
        scheduler,
        update,
        eval_batches,
    )
    # Other processes may not see the last checkpoint yet.
    checkpoint = torch_engine.newest_of_first(folder)
    if evaluates:
        report(params, checkpoint)
    export_trained(params, checkpoint)


def show_size(params, module):
    """Logs the number of parameters."""
    counts = [count_parameters(module), count_parameters(module, only_trained=True)]
    more = "" if counts[0] == counts[1] else f", {counts[1]:,} of them trained"
    logger().info("%s: %s parameters%s", params.model_name, f"{counts[0]:,}", more)


def evaluate(params, every=False):
    """Evaluates the newest checkpoint, or that of checkpoint_path, or all of model_dir."""
    folder = params.runconfig.model_dir
    chosen = torch_engine.checkpoints_of(folder) if every else [torch_engine.chosen(params)]
    for checkpoint in chosen:
        logger().info("evaluating %s", checkpoint or params.model.pretrained)
        report(params, checkpoint)


def report(params, checkpoint):
    """Evaluates a checkpoint, or without one `model.pretrained`, with the scores of the task."""
    model = LoadedModel(params)
    weights = model.weights(checkpoint)
    collected = scores_of(params)
    names = input_names(model.module) | set(collected.extras)
    batches, scores = make_batches(params.eval_input, False, names), score_function(params)
    found = torch_engine.score(params, model.module, batches, scores, weights, collected)
    step = 0 if checkpoint is None else torch_engine.step_of(checkpoint)
    torch_engine.report_scores(params, found, step)


def generate(args, params):
    """Continues prompts on the console; see commands/generate.py."""
    from modelzoo.hugging_face import generation

    show_progress()
    generation.run(args, params)


def zero_shot(args, params, tasks):
    """Yields name, number of rows, scores and file of every task; see commands/zero_shot.py."""
    show_progress()
    yield from scoring.run(args, params, tasks)


def export(params, output, overwrite):
    """Writes a folder of transformers or an adapter of peft; see commands/export.py."""
    checkpoint = torch_engine.chosen(params)
    if checkpoint is None:
        raise CheckpointError(
            f"{params.runconfig.model_dir}: must have a checkpoint. Received: none. Train first."
        )
    write_export(params, checkpoint, output, overwrite)
