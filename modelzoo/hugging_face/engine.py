"""Trains and evaluates transformers models with cerebras_tf.torch, by their params."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
from pathlib import Path

from cerebras_tf.api import (
    TorchModel,
    TorchTraining,
    TrainingSettings,
    get_logger,
    progress_bar,
    torch_checkpoints,
)
from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.torch import fit
from modelzoo.common.config.params import save_params
from modelzoo.common.train.console import LINE, TIME
from modelzoo.hugging_face.data import make_batches
from modelzoo.hugging_face.model import (
    count_parameters,
    input_names,
    loss_function,
    make_module,
    score_function,
)
from modelzoo.hugging_face.optimizers import make_optimizer

SCORES = "metrics.jsonl"  # of evaluations


def run_mode(mode, params):
    """Runs a mode of the command line."""
    show_logs()
    if mode == "predict":
        raise ConfigError(
            f"mode: {params.model_name} has no mode predict. Received: predict. Run `cerebras-tf "
            "generate` for text, or eval."
        )
    if mode in ("train", "train_and_eval"):
        train(params, mode == "train_and_eval")
    else:
        evaluate(params, every=mode == "eval_all")


def show_logs():
    """Shows lines of progress with their time."""
    logger = get_logger()
    if not logging.getLogger().handlers and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    for handler in logger.handlers:
        handler.setFormatter(logging.Formatter(LINE, TIME))


def settings_of(params):
    """Returns the options of the engine, by name."""
    runconfig = params.runconfig
    names = ("keep_float32", "memoryx_dir", "memoryx_ram_gb", "memoryx_moment_dtype")
    names += ("wafer_memory_gb", "micro_batches", "num_csx", "num_threads", "compile_dir")
    return {
        **{name: getattr(runconfig, name) for name in names},
        "precision": runconfig.precision or "float32",
        "remove_padding": params.model.use_vsl,
        "batches_per_step": params.batches_per_step,
    }


def train(params, evaluates):
    """Trains up to the last step, from the newest checkpoint of model_dir.

    Args:
        evaluates: whether `eval_input` is evaluated at every checkpoint.
    """
    runconfig = params.runconfig
    module = make_module(params)
    batches = make_batches(params.train_input, True, input_names(module), first_batch(params))
    newest = checkpoints_of(runconfig.model_dir)[-1:]
    step = step_of(newest[0]) if newest else 0
    end = last_step(params, step, batches)
    log(f"{params.model_name}: {count_parameters(module):,} parameters")
    if step >= end:
        log(f"nothing to train: {runconfig.model_dir} is at step {step} of {end}")
        return
    optimizer, scheduler, update = make_optimizer(params, module)
    options = {}
    if evaluates:
        options = {
            "eval_loader": make_batches(params.eval_input, False, input_names(module)),
            "eval_every": runconfig.save_checkpoints_steps,
            "eval_steps": eval_steps(runconfig),
        }
    os.makedirs(runconfig.model_dir, exist_ok=True)
    save_params(params, runconfig.model_dir)
    fit(
        module,
        optimizer,
        batches,
        steps=end,
        loss=loss_function(params),
        scheduler=scheduler,
        update=update,
        model_dir=runconfig.model_dir,
        save_every=runconfig.save_checkpoints_steps,
        keep=runconfig.keep_checkpoint_max,
        log_every=runconfig.log_step_count_steps or runconfig.save_summary_steps,
        loggers=runconfig.loggers,
        profile=runconfig.profile,
        seed=params.seed,
        **settings_of(params),
        **options,
    )
    if evaluates:
        report_scores(params, score(params, module), end)


def first_batch(params):
    """Returns the number of the first batch of training without a checkpoint."""
    return (params.train_input.skip_steps or 0) * params.batches_per_step


def last_step(params, step, batches):
    """Returns the global step at which training ends."""
    runconfig = params.runconfig
    ends = [runconfig.max_steps, None if runconfig.steps is None else step + runconfig.steps]
    if not params.train_input.repeat:
        left = batches.batches_per_epoch - first_batch(params)
        ends.append(left // params.batches_per_step)
    return min(end for end in ends if end is not None)


def eval_steps(runconfig):
    """Returns the batches of an evaluation; None for the whole data set."""
    steps = runconfig.eval_steps
    return steps if steps is not None and steps > 0 else None


def evaluate(params, every=False):
    """Evaluates the newest checkpoint, or that of checkpoint_path, or all of model_dir."""
    for folder in checkpoints_of(params.runconfig.model_dir) if every else [chosen(params)]:
        module = make_module(params)
        step = 0
        if folder is not None:
            log(f"evaluating {folder}")
            step = load_weights(module, folder)
        report_scores(params, score(params, module), step)


def chosen(params):
    """Returns the checkpoint to use; None for the weights of model.pretrained."""
    runconfig = params.runconfig
    if runconfig.checkpoint_path:
        return Path(runconfig.checkpoint_path)
    found = checkpoints_of(runconfig.model_dir)
    if not found and not params.model.pretrained:
        raise CheckpointError(
            f"{runconfig.model_dir}: must have a checkpoint, or set model.pretrained. Received: "
            "none. Train first."
        )
    return found[-1] if found else None


def score(params, module):
    """Returns loss and scores of `eval_input`, by name."""
    batches = make_batches(params.eval_input, False, input_names(module))
    count = min(eval_steps(params.runconfig) or len(batches), len(batches))
    totals: dict[str, float] = {}
    training = None
    module.eval()
    given = {**settings_of(params), "micro_batches": 1, "num_csx": 1, "batches_per_step": 1}
    with progress_bar(count, "batches", text="evaluating") as bar:
        for batch in itertools.islice(batches, count):
            if training is None:
                model = TorchModel(module, batch, loss=score_function(params))
                training = TorchTraining(model, TrainingSettings(**given))
            for name, value in training.step(batch).items():
                totals[name] = totals.get(name, 0.0) + float(value)
            bar.update(1)
    training.close()
    names = [name.removesuffix("_sum") for name in totals if name.endswith("_sum")]
    return {name: totals[f"{name}_sum"] / totals[f"{name}_count"] for name in sorted(names)}


def report_scores(params, scores, step):
    """Logs the results of an evaluation, and adds them to a file of model_dir."""
    log(f"evaluation at step {step}: " + ", ".join(f"{k} = {v:.6g}" for k, v in scores.items()))
    folder = Path(params.runconfig.model_dir, "eval")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / SCORES, "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **scores}) + "\n")


def checkpoints_of(folder):
    """Returns the checkpoints of a model folder, the newest last."""
    return torch_checkpoints(str(folder))


def step_of(checkpoint):
    """Returns the global step of a checkpoint."""
    return int(checkpoint.name.partition("-")[2])


def load_weights(module, checkpoint):
    """Reads the parameters and buffers of a checkpoint into a module; returns its step."""
    import safetensors.torch

    path = Path(checkpoint, "model.safetensors")
    try:
        found = safetensors.torch.load_file(path)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{checkpoint}: must be a checkpoint of this model. Received: {error}. Use another "
            "checkpoint_path."
        ) from error
    missing, unknown = module.load_state_dict(found, strict=False)
    ties = {id(p): n for n, p in module.named_parameters()}
    names = {n for n, p in module.named_parameters(remove_duplicate=False) if ties[id(p)] in found}
    missing = [name for name in missing if name not in names]
    if missing or unknown:
        raise CheckpointError(
            f"{checkpoint}: must be a checkpoint of this model. Received: "
            f"{len(missing)} weights missing, {len(unknown)} unknown, such as "
            f"{(*missing, *unknown)[0]}. Use the params file that it was trained with."
        )
    with contextlib.suppress(ValueError):
        return step_of(Path(checkpoint))
    return 0


def log(text):
    """Logs a line."""
    get_logger().info("%s", text)


def generate(args, params):
    """Continues prompts on the console; see commands/generate.py."""
    from modelzoo.hugging_face import generation

    show_logs()
    generation.run(args, params)
