"""Trains and evaluates PyTorch modules by their params, with cerebras_tf.torch.

What a model adds: its module, batches, loss function and optimizer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from pathlib import Path

from cerebras_tf.api import (
    TorchModel,
    TorchTraining,
    TrainingSettings,
    fit,
    progress_bar,
    torch_checkpoints,
)
from cerebras_tf.errors import CheckpointError, DataError
from modelzoo.common.config.params import save_params
from modelzoo.common.train.console import logger

SCORES = "metrics.jsonl"  # of evaluations


def options_of(params):
    """Returns the options of the engine, by name."""
    runconfig = params.runconfig
    names = (
        *("attention_precision", "keep_float32", "memoryx_dir", "memoryx_ram_gb"),
        "memoryx_moment_dtype",
        *("wafer_memory_gb", "micro_batches", "num_csx", "num_threads", "compile_dir"),
    )
    return {
        **{name: getattr(runconfig, name) for name in names},
        "precision": runconfig.precision or "float32",
        "remove_padding": params.model.use_vsl,
        "batches_per_step": params.batches_per_step,
    }


def settings(params, alone=False):
    """Returns the TrainingSettings.

    Args:
        alone: for steps of one batch, with weights in memory.
    """
    given = options_of(params)
    if alone:
        given |= {"micro_batches": 1, "num_csx": 1, "batches_per_step": 1}
        given |= {"memoryx_dir": None, "memoryx_ram_gb": None, "memoryx_moment_dtype": None}
    return TrainingSettings(**given)


def train(params, module, batches, end, loss, optimizer, scheduler, update, eval_batches=None):
    """Trains up to a global step, from the newest checkpoint of model_dir; see fit.

    Args:
        end: the global step.
        eval_batches: evaluated at every checkpoint.
    """
    runconfig = params.runconfig
    options = options_of(params)
    if eval_batches is not None:
        options["eval_loader"] = eval_batches
        options["eval_every"] = runconfig.save_checkpoints_steps
        options["eval_steps"] = eval_steps(runconfig)
    os.makedirs(runconfig.model_dir, exist_ok=True)
    save_params(params, runconfig.model_dir)
    fit(
        module,
        optimizer,
        batches,
        steps=end,
        loss=loss,
        scheduler=scheduler,
        update=update,
        model_dir=runconfig.model_dir,
        save_every=runconfig.save_checkpoints_steps,
        keep=runconfig.keep_checkpoint_max,
        log_every=runconfig.log_step_count_steps or runconfig.save_summary_steps,
        loggers=runconfig.loggers,
        profile=runconfig.profile,
        seed=params.seed,
        **options,
    )


def last_step(params, step, batches_per_epoch):
    """Returns the global step at which training ends.

    Args:
        step: that of the newest checkpoint.
    """
    runconfig = params.runconfig
    ends = [runconfig.max_steps, None if runconfig.steps is None else step + runconfig.steps]
    if not params.train_input.repeat:
        skipped = params.train_input.skip_steps or 0
        ends.append(batches_per_epoch // params.batches_per_step - skipped)
    return min(end for end in ends if end is not None)


def eval_steps(runconfig):
    """Returns the batches of an evaluation; None for the whole data set."""
    steps = runconfig.eval_steps
    return steps if steps is not None and steps > 0 else None


def score(params, module, batches, scores):
    """Returns loss and scores over batches, by name.

    Args:
        module: the model, which is set to eval mode.
        scores: a function of the model and a batch that returns ``NAME_sum`` and ``NAME_count`` for
            each score.
    """
    count = min(eval_steps(params.runconfig) or len(batches), len(batches))
    totals: dict[str, float] = {}
    training = None
    module.eval()
    with progress_bar(count, "batches", text="evaluating") as bar:
        for batch in itertools.islice(batches, count):
            if training is None:
                model = TorchModel(module, batch, loss=scores)
                training = TorchTraining(model, settings(params, alone=True))
            for name, value in training.step(batch).items():
                totals[name] = totals.get(name, 0.0) + float(value)
            bar.update(1)
    if training is None:
        raise DataError(
            "eval_input: must yield at least one batch. Received: none. Lower batch_size."
        )
    training.close()
    names = sorted(name.removesuffix("_sum") for name in totals if name.endswith("_sum"))
    return {name: totals[f"{name}_sum"] / max(totals[f"{name}_count"], 1) for name in names}


def report_scores(params, found, step):
    """Logs the results of an evaluation, and adds them to a file of model_dir."""
    text = ", ".join(f"{name} = {value:.6g}" for name, value in found.items())
    logger().info("evaluation at step %d: %s", step, text)
    folder = Path(params.runconfig.model_dir, "eval")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / SCORES, "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **found}) + "\n")


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


def checkpoints_of(folder):
    """Returns the checkpoints of a model folder, the newest last."""
    return torch_checkpoints(str(folder))


def step_of(checkpoint):
    """Returns the global step of a checkpoint, 0 for another folder."""
    with contextlib.suppress(ValueError):
        return int(Path(checkpoint).name.partition("-")[2])
    return 0


def load_weights(module, checkpoint):
    """Reads the parameters and buffers of a checkpoint into a module."""
    import safetensors.torch

    try:
        found = safetensors.torch.load_file(Path(checkpoint, "model.safetensors"))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{checkpoint}: must be a checkpoint of this model. Received: {error}. Use another "
            "checkpoint_path."
        ) from error
    first = {id(p): name for name, p in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    tied = {name for name, p in every if first[id(p)] in found}
    missing, unknown = module.load_state_dict(found, strict=False)
    wrong = [*(name for name in missing if name not in tied), *unknown]
    if wrong:
        raise CheckpointError(
            f"{checkpoint}: must be a checkpoint of this model. Received: {len(wrong)} weights "
            f"missing or unknown, such as {wrong[0]}. Use the params file that it was trained with."
        )
