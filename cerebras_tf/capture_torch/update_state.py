"""What an update changes besides parameters and optimizer: a GradScaler, averages of weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional
from unittest import mock

import torch
from torch.amp import GradScaler
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn

from cerebras_tf.errors import ConfigError, UnsupportedOpError

Tensors = dict[str, torch.Tensor]
_SCALER = "grad_scaler"
LOSS_SCALE = f"{_SCALER}/scale"
_TRACKER = f"{_SCALER}/growth_tracker"


class UntracedState(BaseException):
    """An update calls an object whose state the trace does not have.

    Attributes:
        owner: the object.
    """

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner


class ScalerState:
    """The scale of a torch.amp.GradScaler, and its number of steps without overflow.

    Methods have the names of GradScaler's, and compute without branches.

    Args:
        scaler: is enabled.
        optimizer: the one that it steps.

    Attributes:
        owner: the scaler.
        first: values before the first step, by name.
        tensors: values while the update is traced.
    """

    methods = ("unscale_", "step", "update", "get_scale", "scale")

    def __init__(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        self.owner, self._optimizer = scaler, optimizer
        state = self._settings = scaler.state_dict()
        self.first: Tensors = {
            LOSS_SCALE: torch.tensor(state["scale"], dtype=torch.float32),
            _TRACKER: torch.tensor(state["_growth_tracker"], dtype=torch.int32),
        }
        self.tensors: Tensors = {}
        self._overflows: Optional[torch.Tensor] = None

    def begin(self, tensors: Tensors, parameters: Mapping[str, torch.Tensor]) -> None:
        """Begins a trace."""
        self.tensors, self._overflows = tensors, None

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients by the scale."""
        self._require(optimizer is self._optimizer and self._overflows is None, "unscale_")
        inverse = (1 / self.tensors[LOSS_SCALE].double()).float()
        finite = []
        for gradient in _gradients(optimizer):
            finite.append((gradient.abs() < float("inf")).all())
            gradient.mul_(inverse)
        self._overflows = ~torch.stack(finite).all()

    def step(self, optimizer: torch.optim.Optimizer, *args: Any) -> None:
        """Makes a step of the optimizer, and takes it back after an overflow."""
        self._require(optimizer is self._optimizer and not args, "step")
        if self._overflows is None:
            self.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        before = [p.clone() for p in parameters]
        states = [
            (state, key, value.clone())
            for state in optimizer.state.values()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        ]
        optimizer.step()
        for parameter, old in zip(parameters, before):
            parameter.copy_(torch.where(self._overflows, old, parameter))
        for state, key, old in states:
            state[key] = torch.where(self._overflows, old, state[key])

    def update(self, new_scale: Any = None) -> None:
        """Lowers the scale after an overflow, and raises it after enough steps without one."""
        self._require(self._overflows is not None and new_scale is None, "update")
        scale, tracker, overflows = (*self.tensors.values(), self._overflows)
        settings = self._settings
        larger = (scale.double() * settings["growth_factor"]).float()
        smaller = (scale.double() * settings["backoff_factor"]).float()
        larger = torch.where(larger < float("inf"), larger, scale)
        is_due = tracker + 1 == settings["growth_interval"]
        self.tensors = {
            LOSS_SCALE: torch.where(overflows, smaller, torch.where(is_due, larger, scale)),
            _TRACKER: torch.where(
                torch.logical_or(overflows, is_due), torch.zeros_like(tracker), tracker + 1
            ),
        }

    def get_scale(self) -> None:
        """Raises UnsupportedOpError, as does `scale`."""
        self._require(False, "get_scale")

    def scale(self, outputs: Any) -> None:
        """Raises UnsupportedOpError."""
        self._require(False, "scale")

    def _require(self, fits: Any, method: str) -> None:
        if not fits:
            raise UnsupportedOpError(
                "GradScaler: update must call unscale_ at most once, then step, then update, with "
                f"the optimizer only. Received: another call of {method}. Correct the order."
            )

    def copy_back(self, value: Callable[[str], torch.Tensor]) -> None:
        """Sets the scaler's state."""
        found = {"scale": float(value(LOSS_SCALE)), "_growth_tracker": int(value(_TRACKER))}
        self.owner.load_state_dict({**self.owner.state_dict(), **found})


class AverageState:
    """The averaged weights of a torch.optim.swa_utils.AveragedModel.

    Args:
        averaged: the averaged model.
        module: the model.
        trained: names of the parameters that steps change.
        number: distinguishes several averages of a model.

    Attributes:
        owner, first, tensors: as in ScalerState.

    Raises:
        ConfigError: it averages another model.
        UnsupportedOpError: it averages buffers.
    """

    methods = ("update_parameters",)

    def __init__(
        self, averaged: AveragedModel, module: torch.nn.Module, trained: Sequence[str], number: int
    ) -> None:
        self.owner, self._module, self.tensors = averaged, module, Tensors()
        if averaged.use_buffers and list(module.buffers()):
            raise UnsupportedOpError(
                "AveragedModel: must average parameters only. Received: use_buffers=True, and a "
                "model with buffers. Set use_buffers=False, and call update_bn after training."
            )
        named, copies = dict(module.named_parameters()), list(averaged.module.parameters())
        fits = [tuple(p.shape) for p in named.values()] == [tuple(p.shape) for p in copies]
        if not fits or any(p.is_meta for p in copies):
            raise ConfigError(
                "AveragedModel: must be made of the model that is trained, with data. Received: "
                f"{len(copies)} parameters, and {len(named)} in the model. Make it from the model."
            )
        suffix = f"averaged_{number}" if number else "averaged"
        self._count = f"{suffix}/count"
        self._copies = dict(zip(named, copies))
        self._names = {f"{name}/{suffix}": name for name in named if name in trained}
        self._check_frozen(named)
        self.first: Tensors = {
            **{key: self._copies[name].detach() for key, name in self._names.items()},
            self._count: averaged.n_averaged.detach(),
        }

    def _check_frozen(self, named: Mapping[str, torch.Tensor]) -> None:
        """Averages of weights that do not change are equal to these."""
        frozen = named.keys() - set(self._names.values())
        if not self.owner.n_averaged:
            with torch.no_grad():
                for name in frozen:
                    self._copies[name].copy_(named[name])
        for name in frozen:
            if not torch.equal(self._copies[name], named[name]):
                raise UnsupportedOpError(
                    "AveragedModel: averages of parameters that are not trained must be equal to "
                    f"these. Received: others, of {name}. Make a new AveragedModel."
                )

    def begin(self, tensors: Tensors, parameters: Mapping[str, torch.Tensor]) -> None:
        """Begins a trace.

        Args:
            parameters: values of the trained parameters, which the update changes.
        """
        self.tensors, self._parameters = tensors, parameters

    def update_parameters(self, model: torch.nn.Module) -> None:
        """Adds the weights to the averages; the first time, copies them."""
        if model is not self._module:
            raise ConfigError(
                "AveragedModel: update_parameters must be called with the model that is trained. "
                f"Received: {type(model).__name__}. Pass that model."
            )
        count = self.tensors[self._count]
        old = [self.tensors[key] for key in self._names]
        new = [self._parameters[name].detach() for name in self._names.values()]
        averages = self._averages([tensor.clone() for tensor in old], new, count)
        for key, average, tensor in zip(self._names, averages, new):
            self.tensors[key] = torch.where(count == 0, tensor, average)
        self.tensors[self._count] = count + 1

    def _averages(
        self, old: list[torch.Tensor], new: list[torch.Tensor], count: torch.Tensor
    ) -> list[torch.Tensor]:
        if self.owner.multi_avg_fn is not None:
            self.owner.multi_avg_fn(old, new, count)
            return old
        average = self.owner.avg_fn or get_swa_avg_fn()
        return [average(first, second, count) for first, second in zip(old, new)]

    def copy_back(self, value: Callable[[str], torch.Tensor]) -> None:
        """Sets the averaged weights; buffers become those of the model."""
        with torch.no_grad():
            for key, name in self._names.items():
                self._copies[name].copy_(value(key))
            self.owner.n_averaged.copy_(value(self._count))
            for buffer, own in zip(self.owner.module.buffers(), self._module.buffers()):
                buffer.copy_(own)


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter.grad


@contextlib.contextmanager
def traced_states(states: Sequence[Any]) -> Iterator[None]:
    """Within: methods of GradScalers and AveragedModels are those of their states.

    Raises:
        UntracedState: such a method is called of another object.
    """
    known = {id(state.owner): state for state in states}

    def replaced(kind: Any, name: str) -> Callable[..., Any]:
        plain = getattr(kind, name)

        def method(owner: Any, *args: Any, **keys: Any) -> Any:
            if isinstance(owner, GradScaler) and not owner.is_enabled():
                return plain(owner, *args, **keys)
            if id(owner) not in known:
                raise UntracedState(owner)
            return getattr(known[id(owner)], name)(*args, **keys)

        return method

    with contextlib.ExitStack() as stack:
        for kind, state in ((GradScaler, ScalerState), (AveragedModel, AverageState)):
            for name in state.methods:
                stack.enter_context(mock.patch.object(kind, name, replaced(kind, name)))
        yield
