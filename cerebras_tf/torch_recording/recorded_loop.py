"""Runs an eager PyTorch loop on the wafer: every iteration is recorded, and run when it ends."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

import torch

from cerebras_tf.capture_torch import internals
from cerebras_tf.capture_torch.export import LOSS
from cerebras_tf.errors import ConfigError, UnsupportedOpError
from cerebras_tf.torch_recording.recorder import Recorder, Recording
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.settings import TrainingSettings
from cerebras_tf.torch_step.training import TorchTraining, tensor_of

_VALUE = "value/{}"
# A call that waits for the end of the step, with its arguments.
_Closure = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class RecordedLoop:
    """The iterations of a loop over one model.

    Within an iteration, tensors have no values. PyTorch calls are recorded. At its end, the step is
    compiled, unless an equal one was, and run. Then the closures are called, with values.

    Args:
        model: the model.
        settings: where variables are stored, precision, micro-batches, wafers.

    Attributes:
        optimizer: the last that `train` was called with; None where the loop does not train.
        run_steps: steps made, with the one that is being recorded.
        first_step: steps of earlier runs, after which random operations continue.

    Example:
        loop = RecordedLoop(model)
        for batch in loop.batches(loader):
            loss = model(**batch).loss
            loss.backward()
            loop.train(optimizer)
            loop.at_end(print, loss)
    """

    def __init__(self, model: torch.nn.Module, settings: Optional[TrainingSettings] = None) -> None:
        self.model = model
        self.settings = settings or TrainingSettings()
        self.optimizer: Optional[torch.optim.Optimizer] = None
        self._update: Optional[Callable[[], Any]] = None
        self.run_steps = self.first_step = 0
        self._states: dict[str, torch.Tensor] = {}
        self._recorder: Optional[Recorder] = None
        self._batch: dict[str, torch.Tensor] = {}
        self._closures: list[_Closure] = []
        self._rates: list[Any] = []
        self._training: Optional[TorchTraining] = None
        self._recording: Optional[Recording] = None
        self._is_active = self._is_changed = False

    def batches(
        self, loader: Iterable[Any], end: Optional[Callable[[], None]] = None
    ) -> Iterator[Any]:
        """The batches of a loader, each of which begins an iteration that ends with the next.

        After a `break`, the iteration of the last batch must be ended by `end` or `compile`.

        Args:
            end: ends an iteration, in place of the method `end`.
        """
        items, done = iter(loader), object()
        try:
            while True:
                if self._recorder is not None:
                    (end or self.end)()
                batch = next(items, done)
                if batch is done:
                    break
                yield self.begin(batch)
        finally:
            self._deactivate()

    def begin(self, batch: Any) -> Any:
        """Begins an iteration; returns the batch with tensors that have no values."""
        holder = _with_states(self.model, self._states)
        self._recorder = Recorder(holder)
        items, structure = internals.flattened(batch)
        self._batch, given = {}, []
        for index, item in enumerate(items):
            if isinstance(item, torch.Tensor):
                name = f"input_{index}"
                self._batch[name] = item
                item = self._recorder.input(name, item)
            given.append(item)
        self._activate()
        return internals.nested(given, structure)

    def track(self, name: str, tensor: torch.Tensor) -> None:
        """Makes a tensor state of the loop, which steps may change in place."""
        if self._states.get(name) is tensor:
            return
        with self.paused():
            self.copy_back()
        self.forget()
        self._states[name] = tensor
        if self._recorder is not None:
            self._recorder.hold(_with_states(self.model, self._states))

    @property
    def is_recording(self) -> bool:
        """Whether calls are recorded now."""
        return self._is_active

    @property
    def is_complete(self) -> bool:
        """Whether the iteration calls `backward` and makes a step, or neither."""
        recorder = self._recorder
        return recorder is not None and recorder.trains == (recorder.loss is not None)

    def train(
        self, optimizer: torch.optim.Optimizer, update: Optional[Callable[[], Any]] = None
    ) -> None:
        """Makes the iteration a training step, with the learning rates that the optimizer has.

        Args:
            update: what follows `backward` and the recorded calls on gradients, in place of
                `optimizer.step`.

        Raises:
            ConfigError: there is no iteration.
            UnsupportedOpError: the iteration has made a step.
        """
        if self._recorder is None:
            raise ConfigError(
                "optimizer.step: must be called in an iteration over batches. Received: a call "
                "outside. Iterate over the batches of the data loader."
            )
        if self._recorder.trains:
            raise UnsupportedOpError(
                "optimizer.step: must be called once in an iteration. Received: a second call. "
                "Use one optimizer, with several groups of parameters."
            )
        if optimizer is not self.optimizer:
            with self.paused():
                self.copy_back()
            self.forget()
            self.optimizer = optimizer
        self._update = update or optimizer.step
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._recorder.trains = True
        self.run_steps += 1

    def zero_grad(self) -> None:
        """Sets the gradients of the iteration to None; see Recorder.clear_gradients."""
        if self._recorder is not None:
            self._recorder.clear_gradients()

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of a tensor that is the same in every iteration; see Recorder.constant."""
        if self._recorder is None:
            return tensor
        with self.paused():
            return self._recorder.constant(tensor)

    def at_end(self, function: Callable[..., Any], *args: Any, **keys: Any) -> None:
        """Calls a function at the end of the iteration, or now if there is none.

        Its arguments may be (nested) tensors of the iteration, which then have values.
        """
        if self._recorder is None:
            function(*args, **keys)
        else:
            self._closures.append((function, args, keys))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within: calls are not recorded, and compute values."""
        was_active = self._is_active
        self._deactivate()
        try:
            yield
        finally:
            if was_active:
                self._activate()

    def _activate(self) -> None:
        assert self._recorder is not None
        self._recorder.__enter__()
        self._is_active = True

    def _deactivate(self) -> None:
        if self._is_active:
            assert self._recorder is not None
            self._recorder.__exit__(None, None, None)
            self._is_active = False

    def _take(self) -> tuple[Optional[Recorder], list[_Closure]]:
        """Ends the iteration; returns what was recorded."""
        self._deactivate()
        found = self._recorder, self._closures
        self._recorder, self._closures = None, []
        return found

    def end(self) -> None:
        """Runs the iteration and its closures."""
        recorder, closures = self._take()
        if recorder is None:
            return
        values: dict[int, torch.Tensor] = {}
        recording = recorder.recording(_numbers(recorder, closures))
        if recording.loss is not None or recording.outputs:
            values = self._run(recording)
        for function, args, keys in closures:
            items, structure = internals.flattened((args, keys))
            items = [_value(recorder, values, item) for item in items]
            args, keys = internals.nested(items, structure)
            function(*args, **keys)

    def compile(self, validate_only: bool = False) -> None:
        """Compiles the iteration and ends it without running it.

        Args:
            validate_only: only capture it.

        Raises:
            ConfigError: no iteration was recorded since the last call.
        """
        recorder, closures = self._take()
        if recorder is None:
            raise ConfigError(
                "compile: an iteration must be recorded first. Received: none since the last "
                "compile. Take a batch of the data loader, and call the model and the optimizer."
            )
        training = self._training_for(recorder.recording(_numbers(recorder, closures)))
        if not validate_only:
            training.prepare(self._given(training))

    def copy_back(self) -> None:
        """Copies what steps have changed to the model, the optimizer and the tracked tensors.

        Within an iteration, which has no values, nothing is copied.
        """
        if self._is_changed and self._training is not None and not self._is_active:
            self._training.copy_back()
            self._is_changed = False

    def forget(self) -> None:
        """Makes the next step begin with the values that model and optimizer have."""
        if self._training is not None:
            self._training.close()
            self._training, self._recording, self._is_changed = None, None, False

    def _run(self, recording: Recording) -> dict[int, torch.Tensor]:
        training = self._training_for(recording)
        with _rates(self.optimizer, self._rates):
            found = training.step(self._given(training))
        self._is_changed = True
        types = training.model.exported.outputs
        names = {n: _VALUE.format(n) for n in recording.outputs}
        values = {n: tensor_of(found[name], types[name][0]) for n, name in names.items()}
        if recording.loss is not None:
            values[recording.loss] = torch.tensor(found[LOSS], dtype=torch.float32)
        return values

    def _given(self, training: TorchTraining) -> dict[str, torch.Tensor]:
        return {name: self._batch[name] for name in training.model.exported.features}

    def _training_for(self, recording: Recording) -> TorchTraining:
        """The training whose step does what the recording does."""
        if recording.trains != (recording.loss is not None):
            raise UnsupportedOpError(
                "iteration: must call backward and the optimizer's step, or neither. Received: "
                f"only {'the step' if recording.trains else 'backward'}. To train on more rows "
                "per step, use larger batches."
            )
        if self._training is not None and self._recording == recording:
            return self._training
        self.copy_back()
        self.forget()
        trains = recording.trains
        with _rates(self.optimizer, self._rates):
            model = TorchModel(
                _with_states(self.model, self._states),
                {name: self._batch[name] for name in recording.used_inputs()},
                self.optimizer if trains else None,
                functools.partial(_outputs, recording),
                functools.partial(self._replay_update, recording) if trains else None,
                open_axes={},
                keeps_buffers=not trains,
            )
        self._training, self._recording = TorchTraining(model, self.settings), recording
        self._training.global_step = self.first_step + self.run_steps - trains
        return self._training

    def _replay_update(self, recording: Recording) -> None:
        """Changes gradients as recorded, and makes the optimizer's step."""
        assert self._update is not None
        recording.replay_update(_with_states(self.model, self._states))
        self._update()


def _outputs(
    recording: Recording, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The loss of a recording, and the other values that are read."""
    values = recording.replay(model, batch)
    found = {} if recording.loss is None else {LOSS: values[recording.loss]}
    return {**found, **{_VALUE.format(number): values[number] for number in recording.outputs}}


def _with_states(model: torch.nn.Module, states: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """A module of the model and of tracked tensors, which are buffers."""
    holder, held = torch.nn.Module(), torch.nn.Module()
    holder.training = model.training
    holder.model, holder.states = model, held
    for name, tensor in states.items():
        held.register_buffer(name.replace(".", "_"), tensor)
    return holder


@contextlib.contextmanager
def _rates(optimizer: Optional[torch.optim.Optimizer], rates: list[Any]) -> Iterator[None]:
    """Within: the optimizer has these learning rates."""
    groups = [] if optimizer is None or not rates else optimizer.param_groups
    later = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates):
        group["lr"] = rate
    try:
        yield
    finally:
        for group, rate in zip(groups, later):
            group["lr"] = rate


def _numbers(recorder: Recorder, closures: Iterable[_Closure]) -> list[int]:
    """Numbers of the recorded tensors that closures read, without the loss."""
    found = []
    for _, args, keys in closures:
        for item in internals.leaves((args, keys)):
            number = recorder.number(item) if isinstance(item, torch.Tensor) else None
            if number is not None and number != recorder.loss and number not in found:
                found.append(number)
    return sorted(found)


def _value(recorder: Recorder, values: Mapping[int, torch.Tensor], item: Any) -> Any:
    number = recorder.number(item) if isinstance(item, torch.Tensor) else None
    return item if number is None else values[number].to(item.dtype)  # float16 is computed wider
