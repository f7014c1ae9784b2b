"""Trains a PyTorch model on the wafer in one call, with checkpoints and progress."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import torch

from cerebras_tf.capture_torch.export import LOSS
from cerebras_tf.console.graceful_stop import GracefulStop
from cerebras_tf.console.log import log_info
from cerebras_tf.console.progress import PhaseReporter, TrainingClock
from cerebras_tf.errors import ConfigError, NumericsError, SystemUnreachableError
from cerebras_tf.memoryx.folder_lock import locked_folder
from cerebras_tf.runtime.profiler import Profiler
from cerebras_tf.swarmx import job, mpi
from cerebras_tf.swarmx.heartbeats import record_checkpoint
from cerebras_tf.torch.options import FitOptions
from cerebras_tf.torch.reports import RunReports
from cerebras_tf.torch.schedule import Schedule
from cerebras_tf.torch_step.batch_form import BatchForm
from cerebras_tf.torch_step.checkpoint import (
    checkpoints,
    folder_of_step,
    keep_newest,
    load_checkpoint,
    remove_unfinished,
    step_of,
)
from cerebras_tf.torch_step.data_order import DataOrder, first_batch
from cerebras_tf.torch_step.evaluation import TorchEvaluation
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.plain_state import keeping_random_state
from cerebras_tf.torch_step.pretrained import PretrainedModel
from cerebras_tf.torch_step.training import Reports, TorchTraining

# Computes the loss of a batch as the loader returns it.
Loss = Callable[[torch.nn.Module, Any], torch.Tensor]
_Evaluate = Callable[[], float]


@dataclasses.dataclass
class FitResult:
    """What a training did.

    Attributes:
        global_step: steps made, those of earlier runs in the same model_dir included.
        losses: the losses that were shown, by step.
        evaluations: mean losses of evaluations, by step.
        checkpoint: folder of the last checkpoint; None without model_dir.
    """

    global_step: int = 0
    losses: dict[int, float] = dataclasses.field(default_factory=dict)
    evaluations: dict[int, float] = dataclasses.field(default_factory=dict)
    checkpoint: Optional[Path] = None


def fit(
    model: Union[torch.nn.Module, PretrainedModel],
    optimizer: torch.optim.Optimizer,
    loader: Any,
    *,
    steps: int,
    loss: Optional[Loss] = None,
    scheduler: Any = None,
    update: Optional[Callable[[], Any]] = None,
    eval_loader: Any = None,
    **options: Any,
) -> FitResult:
    """Trains a model on the emulated wafer.

    The model's tensors and `optimizer.state` are updated at the end. With `model_dir`, the run
    writes checkpoints there, and the same call continues from the newest one: after an interruption
    it gives the same bits as without it.

    Args:
        model: a module, in train mode for dropout and batch normalization; or a model in a folder,
            whose trained weights are then in the last checkpoint, and those of LoRA also in it.
        optimizer: an optimizer of its parameters.
        loader: an iterable of batches that starts again, such as a DataLoader.
        steps: global step at which training ends.
        loss: returns the loss, given the model and a batch as the loader returns it. None: batches
            are dicts of the model's arguments, and the model returns the loss, or an object with
            the attribute `loss`.
        scheduler: its `step()` is called after every step.
        update: is called in place of `optimizer.step()`, with gradients set; it must call that. It
            may call a GradScaler, and `update_parameters` of an AveragedModel.
        eval_loader: batches of evaluations in eval mode; an iterable that starts again.
        options: see docs/guides/pytorch.md: precision, memoryx_dir, micro_batches, num_csx,
            model_dir, save_every, log_every, clip and more.

    Raises:
        ConfigError: an option is invalid.
        UnsupportedOpError: the model cannot be captured.
        CheckpointError: the newest checkpoint is damaged, or of another model.

    Example:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        cerebras_tf.torch.fit(model, optimizer, loader, steps=1000, model_dir="run", clip=1.0)
    """
    known = {each.name for each in dataclasses.fields(FitOptions)}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ConfigError(
            f"fit: options must be among {', '.join(sorted(known))}. Received: "
            f"{', '.join(unknown)}."
        )
    _check_steps(steps)
    chosen = FitOptions(**options)
    if eval_loader is None:
        _refuse_evaluations(chosen)
    run = _Run(model, optimizer, loader, chosen, loss, scheduler, update)
    with _failing_together(), run.locked():
        return run.train(steps, eval_loader)


class _Run:
    """A call of `fit`."""

    def __init__(
        self,
        model: Union[torch.nn.Module, PretrainedModel],
        optimizer: torch.optim.Optimizer,
        loader: Any,
        options: FitOptions,
        loss: Optional[Loss],
        scheduler: Any,
        update: Optional[Callable[[], Any]],
    ) -> None:
        _check_objects(model, optimizer)
        if update is not None and options.clip is not None:
            raise ConfigError("clip: has no effect with update. Received: both. Clip in update.")
        self._pretrained = model if isinstance(model, PretrainedModel) else None
        self._model = model.module if isinstance(model, PretrainedModel) else model
        self._optimizer, self._loss = optimizer, loss
        self._options, self._schedule = options, Schedule(scheduler, optimizer)
        self._update = update or self._clipped_step
        self._swarm = mpi.swarm()
        self._order = DataOrder(loader, self._swarm.rank, self._swarm.size, _log)
        self._clock = TrainingClock()
        self._result = FitResult()
        self._form: Optional[BatchForm] = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Within: the model folder is locked, by the first process."""
        folder = self._options.model_dir
        if folder is None or not job.is_first():
            yield
            return
        with locked_folder(folder, clean=remove_unfinished):
            yield

    def train(self, steps: int, eval_loader: Any) -> FitResult:
        """Trains up to a step; see fit."""
        folder = self._begin()
        batches = self._take()
        with keeping_random_state(), contextlib.ExitStack() as made:
            training = self._make_training(batches[0])
            made.callback(training.close)
            evaluate = self._make_evaluation(training, eval_loader, made)
            closing = made.pop_all()
        with closing:
            if folder is not None:
                _log(f"resuming from {folder}")
                training.restore(folder)
                for line in self._schedule.apply_functions():
                    _log(line)
            with GracefulStop(newest=self._newest) as stop:
                with RunReports(self._options, training, steps, self._clock) as reports:
                    try:
                        self._loop(training, reports, evaluate, stop, batches, steps)
                    except SystemUnreachableError as error:
                        last = self._result.checkpoint or "none"
                        raise SystemUnreachableError(f"{error} The last is {last}.") from None
                training.copy_back()
        self._result.global_step = training.global_step
        return self._result

    def _newest(self) -> Optional[tuple[int, str]]:
        """Step and folder of the newest checkpoint, for the line of a run that is stopped."""
        found = self._result.checkpoint
        return None if found is None else (step_of(found), str(found))

    def _begin(self) -> Optional[Path]:
        """Restores the position in the data; returns the checkpoint to resume from, if any."""
        folder = self._options.model_dir
        found = checkpoints(folder) if folder is not None else []
        newest: Optional[Path] = self._swarm.objects(found[-1] if found else None)[0]
        self._order.agree(self._swarm)
        if newest is None:
            return None
        self._result.checkpoint = newest
        state = load_checkpoint(newest, None)["run"]
        if self._options.resume_data:
            self._order.restore(state["data"])
        for line in self._schedule.restore(state, newest):
            _log(line)
        return newest

    def _take(self) -> list[Any]:
        """The batches of a step, of this process."""
        batches = [self._order.take() for _ in range(self._options.batches_here)]
        self._order.align()
        return batches

    def _tensors(self, batches: list[Any]) -> Any:
        assert self._form is not None
        found = [self._form.tensors(batch) for batch in batches]
        return found if len(found) > 1 else found[0]

    def _make_training(self, example: Any) -> TorchTraining:
        form = self._form = BatchForm(example)
        options, phases = self._options, PhaseReporter()
        first = job.is_first()
        profiler = Profiler() if options.profile is not None and first else None
        phase = phases.phase if first else contextlib.nullcontext
        with phase("exporting the model"):
            model = TorchModel(
                self._model,
                form.tensors(example),
                self._optimizer,
                self._loss_of(form),
                self._update,
                options.seed,
                self._stored(),
            )
        weights = None if self._pretrained is None else self._pretrained.weights()
        return TorchTraining(model, options, weights, reports=Reports(_log, phase, profiler))

    def _stored(self) -> Optional[dict[str, str]]:
        return None if self._pretrained is None else self._pretrained.stored()

    def _loss_of(self, form: BatchForm) -> Optional[Loss]:
        """The loss as a function of the model and named tensors."""
        loss = self._loss
        return None if loss is None else lambda model, tensors: loss(model, form.batch(tensors))

    def _clipped_step(self) -> None:
        if self._options.clip is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._options.clip)
        self._optimizer.step()

    def _make_evaluation(
        self, training: TorchTraining, loader: Any, closing: contextlib.ExitStack
    ) -> Optional[_Evaluate]:
        """Returns the mean loss over the batches of a loader, until `closing` ends."""
        if loader is None:
            return None
        form, modes = self._form, {item: item.training for item in self._model.modules()}
        assert form is not None
        self._model.eval()
        try:
            example = form.tensors(first_batch(loader, "eval_loader"))
            loss, stored = self._loss_of(form), self._stored()
            model = TorchModel(self._model, example, loss=loss, stored=stored)
        finally:
            for item, mode in modes.items():
                item.training = mode
        evaluation = TorchEvaluation(training, model)
        closing.callback(evaluation.close)

        def evaluate() -> float:
            with keeping_random_state(), self._clock.paused():
                batches = itertools.islice(loader, self._options.eval_steps)
                return evaluation.loss(map(form.tensors, batches))

        return evaluate

    def _loop(
        self,
        training: TorchTraining,
        reports: RunReports,
        evaluate: Optional[_Evaluate],
        stop: GracefulStop,
        batches: list[Any],
        steps: int,
    ) -> None:
        options = self._options
        if training.global_step >= steps:
            _log(
                f"nothing to train: {options.model_dir} is at step {training.global_step} of "
                f"{steps}. Increase steps, or use another model_dir."
            )
            return
        reports.begin(training.global_step, training.prepare(self._tensors(batches)))
        stop.begin()
        is_last = False
        while not is_last:
            rates = [float(group["lr"]) for group in self._optimizer.param_groups]
            tensors = self._tensors(batches)
            loss = training.step(tensors)[LOSS]
            step = training.global_step
            if training.model.update is None or not training.model.update.skips_overflows:
                self._check_finite(step, loss)
            self._schedule.step()
            reports.after_step(step, loss, rates, _tokens(tensors) * self._swarm.size)
            stops = bool(self._swarm.gather(np.array(stop.is_due)).any())
            is_last = step == steps or stops
            is_due = options.eval_at_end if is_last else _is_due(step, options.eval_every)
            is_evaluated = is_due and not stops
            if evaluate is not None and is_evaluated:
                found = self._result.evaluations[step] = evaluate()
                reports.evaluated(step, found)
            if is_last or _is_due(step, options.save_every):
                self._save(training)
            if not is_last:
                batches = self._take()
        reports.end(training.global_step)
        self._result.losses = reports.losses

    def _check_finite(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            last = self._result.checkpoint
            raise NumericsError(
                f"training, step {step}: the loss must be finite. Received: {loss}. Lower the "
                "learning rate, set clip, or check the data of this step; "
                f"{'there is no checkpoint' if last is None else f'the last checkpoint is {last}'}."
            )

    def _save(self, training: TorchTraining) -> None:
        """Writes a checkpoint, if there is a model folder."""
        if self._options.model_dir is None:
            return
        specs = training.store.specs
        damaged = training.store.not_finite([n for n, spec in specs.items() if spec.trainable])
        if damaged:
            raise NumericsError(
                f"checkpoint of step {training.global_step}: weights must be finite to be saved. "
                f"Received: NaN or infinity in {len(damaged)} variables, the first {damaged[0]}. "
                "Lower the learning rate, or set clip."
            )
        folder = folder_of_step(self._options.model_dir, training.global_step)
        training.save(folder, {"data": self._order.state(), **self._schedule.state()})
        self._result.checkpoint = folder
        if job.is_first():
            record_checkpoint(job.folder(), str(folder))
            keep_newest(self._options.model_dir, self._options.keep)


def _is_due(step: int, every: Optional[int]) -> bool:
    return every is not None and step % every == 0


def _tokens(tensors: Any) -> int:
    """The tokens of a step's batches, if these have `input_ids`."""
    batches = tensors if isinstance(tensors, list) else [tensors]
    return sum(batch["input_ids"].numel() for batch in batches if "input_ids" in batch)


def _check_steps(steps: Any) -> None:
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ConfigError(f"steps: must be a positive integer. Received: {steps!r}.")


def _refuse_evaluations(options: FitOptions) -> None:
    """Raises ConfigError if an option of evaluations is set."""
    for name in ("eval_every", "eval_steps"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"{name}: needs eval_loader. Received: {getattr(options, name)} without it. Pass "
                f"eval_loader, or remove {name}."
            )


def _check_objects(model: Any, optimizer: Any) -> None:
    """Raises ConfigError for objects of other types."""
    if not isinstance(model, (torch.nn.Module, PretrainedModel)):
        raise ConfigError(
            "model: must be a torch.nn.Module or a PretrainedModel. Received: "
            f"{type(model).__name__}."
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer: must be a torch.optim.Optimizer. Received: {type(optimizer).__name__}."
        )


def _log(line: str) -> None:
    if job.is_first():
        log_info("%s", line)


@contextlib.contextmanager
def _failing_together() -> Iterator[None]:
    """Within: an error ends this process at once, though others wait for it."""
    try:
        yield
    except Exception:
        if job.wafers() > 1:
            mpi.fail()
        raise
