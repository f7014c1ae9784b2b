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
    EventFile,
    TensorFile,
    TorchModel,
    TorchTraining,
    TrainingSettings,
    fit,
    job,
    mpi,
    progress_bar,
    torch_checkpoints,
)

# Names that models use.
from cerebras_tf.api import LoraSettings as LoraSettings
from cerebras_tf.api import PretrainedModel as PretrainedModel
from cerebras_tf.api import TensorType as TensorType
from cerebras_tf.api import load_tensors as load_tensors
from cerebras_tf.api import whole_folder as whole_folder
from cerebras_tf.api import write_shards as write_shards
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
        *("cs_ip", "credentials_path"),
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


def train(params, model, batches, end, loss, optimizer, scheduler, update, eval_batches=None):
    """Trains up to a global step, from the newest checkpoint of model_dir; see fit.

    Args:
        model: a module, or a PretrainedModel.
        end: the global step.
        eval_batches: evaluated at every checkpoint.
    """
    runconfig = params.runconfig
    options = options_of(params)
    if eval_batches is not None:
        options["eval_loader"] = eval_batches
        options["eval_every"] = runconfig.save_checkpoints_steps
        options["eval_steps"] = eval_steps(runconfig)
        options["eval_at_end"] = False  # with scores, see report_scores
    os.makedirs(runconfig.model_dir, exist_ok=True)
    save_params(params, runconfig.model_dir)
    fit(
        model,
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


def check(params, module, batch, loss, weights, optimizer=None, update=None):
    """Compiles a step without running it, and logs the model and its memory.

    With runconfig.compile_dir and compile_only, the program is saved.

    Args:
        module, loss, optimizer, update: as for training; without an optimizer, an evaluation.
        weights: regions of files by name.
    """
    given = options_of(params)
    if params.runconfig.validate_only:
        given["compile_dir"] = None
    chosen = settings(params, alone=True) if optimizer is None else TrainingSettings(**given)
    if optimizer is None:
        module.eval().requires_grad_(False)
    stored = stored_types(module, weights)
    model = TorchModel(module, batch, optimizer, loss, update, params.seed, stored)
    training = TorchTraining(model, chosen, weights)
    batches = [batch] * chosen.batches_here
    about = training.prepare(batches if len(batches) > 1 else batch, fills=False)
    training.close()
    if job.is_first():
        what = "evaluation" if optimizer is None else "training"
        logger().info("%s compiles: %s", what, about)


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


def evaluation_of(params, module, batch, outputs, weights):
    """Returns a TorchTraining whose steps compute outputs of batches and train nothing.

    Args:
        module: the model, which is set to eval mode and frozen.
        outputs: a function of the model and a batch.
        weights: regions of files by name; others are those of the module.
    """
    module.eval().requires_grad_(False)
    model = TorchModel(module, batch, loss=outputs, stored=stored_types(module, weights))
    return TorchTraining(model, settings(params, alone=True), weights)


def score(params, module, batches, scores, weights, collected):
    """Returns loss and scores over batches, by name.

    Args:
        module, weights: see `evaluation_of`.
        collected: gets every batch and its outputs, arrays by name. Its `extras` are columns of a
            batch that the model does not take, and its `scores` returns further scores by name.
        scores: a function of the model and a batch that returns ``NAME_sum`` and ``NAME_count`` for
            each score.
    """
    count = min(eval_steps(params.runconfig) or len(batches), len(batches))
    totals: dict[str, float] = {}
    training = None
    with progress_bar(count, "batches", text="evaluating") as bar:
        for batch in itertools.islice(batches, count):
            extras = {name: batch.pop(name) for name in collected.extras if name in batch}
            if training is None:
                training = evaluation_of(params, module, batch, scores, weights)
            found = training.step(batch)
            for name in (name for name in found if name.endswith(("_sum", "_count"))):
                totals[name] = totals.get(name, 0.0) + float(found[name])
            columns = {name: tensor.numpy() for name, tensor in {**batch, **extras}.items()}
            collected.add(columns, found)
            bar.update(1)
    if training is None:
        raise DataError(
            "eval_input: must yield at least one batch. Received: none. Lower batch_size."
        )
    training.close()
    names = sorted(name.removesuffix("_sum") for name in totals if name.endswith("_sum"))
    means = {name: totals[f"{name}_sum"] / max(totals[f"{name}_count"], 1) for name in names}
    return {**means, **{name: float(value) for name, value in collected.scores().items()}}


def report_scores(params, found, step):
    """Logs the results of an evaluation and adds them to a file; done by the first process."""
    if not job.is_first():
        return
    text = ", ".join(f"{name} = {value:.6g}" for name, value in found.items())
    logger().info("evaluation at step %d: %s", step, text)
    model_dir = params.runconfig.model_dir
    folder = Path(model_dir, "eval")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(EventFile(model_dir)) as events:
        events.log(step, {f"eval/{name}": value for name, value in found.items()})
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


def newest_of_first(folder):
    """Returns the newest checkpoint that the first process sees; others may not see it yet."""
    return mpi.swarm().objects(checkpoints_of(folder)[-1:])[0][0]


def is_first():
    """Whether this is the first process of the job."""
    return job.is_first()


def step_of(checkpoint):
    """Returns the global step of a checkpoint, 0 for another folder."""
    with contextlib.suppress(ValueError):
        return int(Path(checkpoint).name.partition("-")[2])
    return 0


def checkpoint_regions(checkpoint, module):
    """Returns where the weights of a checkpoint are stored, by name.

    Args:
        module: the model. Parameters that are not trained are not in its checkpoints.

    Raises:
        CheckpointError: the checkpoint is that of another model.
    """
    try:
        found = TensorFile(Path(checkpoint, "model.safetensors")).regions
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint}: must be a checkpoint. {error}") from error
    parameters = dict(module.named_parameters())
    known = {**dict(module.named_buffers()), **parameters}
    wrong = [f"{n} is missing" for n, p in parameters.items() if p.requires_grad and n not in found]
    wrong += [f"{name} is unknown" for name in found if name not in known]
    wrong += [
        f"{name} has shape {list(region.shape)} and not {list(known[name].shape)}"
        for name, region in found.items()
        if name in known and region.shape != tuple(known[name].shape)
    ]
    if wrong:
        raise CheckpointError(
            f"{checkpoint}: must be a checkpoint of this model. Received: {len(wrong)} weights "
            f"that differ: {'; '.join(wrong[:3])}. Use the params file that it was trained with."
        )
    return found


def stored_types(module, weights):
    """Returns the dtypes of half precision of weights that are not trained, by name."""
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    return {n: r.dtype for n, r in weights.items() if n in frozen and r.dtype != "float32"}
