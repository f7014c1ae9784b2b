"""Records the PyTorch calls of a step on tensors without data, and calls them again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function

from cerebras_tf.capture_torch import internals
from cerebras_tf.capture_torch.autograd_functions import run_forward
from cerebras_tf.errors import UnsupportedOpError

# Constants up to this size are compared by value from step to step.
_CONSTANT_BYTES = 1 << 20


@dataclass(frozen=True)
class Recorded:
    """The tensor with this number among those of a recording."""

    number: int


@dataclass(frozen=True)
class Held:
    """A parameter or buffer of the model, by its name."""

    name: str


@dataclass(frozen=True)
class Gradient:
    """The gradient of a parameter of the model, by its name."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A tensor that was made outside of the recording."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        function: what was called.
        given: leaves of its arguments; a tensor is Recorded, Held, Gradient or Constant.
        structure: nesting of the arguments.
        results: numbers of the tensors that it returned, None for other leaves.
    """

    function: Callable[..., Any]
    given: tuple[Any, ...]
    structure: Any
    results: tuple[Optional[int], ...]


@dataclass(frozen=True)
class Recording:
    """The calls of one step, which compare equal if they do the same.

    Attributes:
        inputs: the tensors of a batch, by name, with dtype and shape.
        calls: in order, without those that depend on gradients.
        loss: number of the tensor whose `backward` was called; None for none.
        outputs: numbers of the tensors whose values are read.
        trains: whether the optimizer made a step.
        updates: the calls that depend on gradients, in order.
    """

    inputs: tuple[tuple[str, int, torch.dtype, tuple[int, ...]], ...]
    calls: tuple[Call, ...]
    loss: Optional[int]
    outputs: tuple[int, ...]
    trains: bool
    updates: tuple[Call, ...] = ()

    def replay(
        self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """Calls everything again; returns all tensors by number.

        Args:
            batch: tensors for the inputs that are used, by name.
        """
        found = {number: batch[name] for name, number, *_ in self.inputs if name in batch}
        return _called(self.calls, model, found)

    def replay_update(self, model: torch.nn.Module) -> None:
        """Makes the calls that depend on gradients, which the model's parameters have."""
        if self.updates:
            _called((*self._free_calls(), *self.updates), model, {})

    def _free_calls(self) -> list[Call]:
        """The calls that depend neither on the batch nor on the model."""
        bound, found = {number for _, number, *_ in self.inputs}, []
        for call in self.calls:
            if any(isinstance(leaf, Held) or _number_of(leaf) in bound for leaf in call.given):
                bound.update(number for number in call.results if number is not None)
            else:
                found.append(call)
        return found

    def used_inputs(self) -> list[str]:
        """Names of the inputs that a call or an output reads."""
        read = {_number_of(leaf) for call in self.calls for leaf in call.given}
        read |= {*self.outputs, *([] if self.loss is None else [self.loss])}
        return [name for name, number, *_ in self.inputs if number in read]


class Recorder(TorchFunctionMode):
    """While active, PyTorch calls are recorded and run on tensors that have no data.

    Args:
        model: its parameters and buffers may be read.

    Attributes:
        loss: number of the tensor whose `backward` was called; None for none.
        trains: whether the optimizer makes a step.

    Raises:
        UnsupportedOpError: the value of a tensor is read, or a tensor outside of the model changes.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._fake = internals.fake_mode()
        self._names: dict[int, str] = {}
        self.hold(model)
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []
        self._inputs: list[tuple[str, int, torch.dtype, tuple[int, ...]]] = []
        self._calls: list[Call] = []
        self._updates: list[Call] = []
        self._gradients: dict[str, torch.Tensor] = {}
        self._gradient_names: dict[int, str] = {}
        self._of_gradients: set[int] = set()
        self.loss: Optional[int] = None
        self.trains = False
        self._overrides = contextlib.ExitStack()
        self._is_inside = False  # of a custom autograd function

    def __enter__(self) -> Recorder:
        self._overrides.enter_context(internals.autograd_functions(self._function))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._overrides.close()

    def _function(self, function: Any, forward: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Records a call of a custom autograd function as one call."""
        if self._is_inside:
            return run_forward(function, forward, args)[1]
        self._is_inside = True
        try:
            return handle_torch_function(function.apply, tuple(args), *args)
        finally:
            self._is_inside = False

    def hold(self, model: torch.nn.Module) -> None:
        """Adds a model whose parameters and buffers may be read."""
        named = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        self._names.update({id(tensor): name for name, tensor in reversed(named)})

    def input(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor without data in place of one of a batch."""
        with self._fake:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        self._inputs.append((name, self._add(fake), tensor.dtype, tuple(tensor.shape)))
        return fake

    def number(self, tensor: torch.Tensor) -> Optional[int]:
        """The number of a recorded tensor; None for another."""
        return self._numbers.get(id(tensor))

    def recording(self, outputs: Sequence[int]) -> Recording:
        """What was recorded until now.

        Args:
            outputs: numbers of the tensors whose values are read.
        """
        late = self._of_gradients.intersection(outputs)
        if late:
            raise UnsupportedOpError(
                "step closure: must not read what depends on gradients, which are not results of a "
                f"step. Received: such a tensor, the result of {self._origin(min(late))}. Remove "
                "it, for example log_summaries."
            )
        return Recording(
            tuple(self._inputs),
            tuple(self._calls),
            self.loss,
            tuple(outputs),
            self.trains,
            tuple(self._updates),
        )

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of a tensor that depends neither on the batch nor on the model.

        Raises:
            UnsupportedOpError: it depends on one of them.
        """
        number = self.number(tensor)
        if number is None:
            return tensor
        found = _called(self.recording([])._free_calls(), torch.nn.Module(), {})
        if number not in found:
            raise UnsupportedOpError(
                "make_constant: must not depend on the batch or the model. Received: the result of "
                f"{self._origin(number)}. Remove the call."
            )
        return found[number]

    def clear_gradients(self) -> None:
        """What `zero_grad` does.

        Raises:
            UnsupportedOpError: it is called between `backward` and the optimizer's step.
        """
        if self.loss is not None and not self.trains:
            raise UnsupportedOpError(
                "zero_grad: must not be called between backward and the optimizer's step. "
                "Received: such a call. Call it before backward, or after the step."
            )

    def _origin(self, number: int) -> str:
        calls = (*self._calls, *self._updates)
        return next((_name(call.function) for call in calls if number in call.results), "a call")

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        """Records a call."""
        if func is torch.Tensor.backward:
            return self._backward(*args, **(kwargs or {}))
        if func in _GRAD and id(args[0]) in self._names:
            return self._gradient(*args) if func == _GRAD[0] else self._set_gradient(*args)
        if torch.is_autocast_enabled("cpu"):
            raise UnsupportedOpError(
                "torch.autocast: is not recorded. Received: it is enabled. Choose the precision "
                "with cerebras.pytorch.amp."
            )
        given, structure = internals.flattened((tuple(args), dict(kwargs or {})))
        leaves = tuple(map(self._leaf, given))
        if _changes_first(func) and leaves and isinstance(leaves[0], Constant):
            raise UnsupportedOpError(
                f"{_name(func)}: must change only buffers and results of the step. Received: "
                "another tensor. Make it a buffer of the model."
            )
        args, keys = internals.nested(map(self._without_data, given), structure)
        try:
            with self._fake:
                result = func(*args, **keys)
        except internals.NEEDS_VALUES as error:
            raise UnsupportedOpError(
                f"{_name(func)}: must not read a value of a tensor, which is known only after the "
                "step. Received: such a read, or a branch on it. Read values in a step closure."
            ) from error
        values = internals.leaves(result)
        if any(isinstance(value, torch.Tensor) for value in values) or _has_effect(func):
            numbers = tuple(map(self._result, values))
            is_update = any(map(self._is_of_gradients, leaves))
            if is_update:
                self._of_gradients.update(number for number in numbers if number is not None)
            calls = self._updates if is_update else self._calls
            calls.append(Call(func, leaves, structure, numbers))
        return result

    def _is_of_gradients(self, leaf: Any) -> bool:
        return isinstance(leaf, Gradient) or _number_of(leaf) in self._of_gradients

    def _gradient(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """The gradient of a parameter, which exists from `backward` to the optimizer's step."""
        name = self._names[id(parameter)]
        if self.loss is None or self.trains or not parameter.requires_grad:
            return None
        if name not in self._gradients:
            with self._fake:
                fake = torch.empty(parameter.shape, dtype=parameter.dtype)
            self._gradients[name], self._gradient_names[id(fake)] = fake, name
        return self._gradients[name]

    def _set_gradient(self, parameter: torch.Tensor, value: Optional[torch.Tensor]) -> None:
        if value is None:
            self.clear_gradients()
        elif value is not self._gradient(parameter):
            raise UnsupportedOpError(
                "grad: must not be replaced. Received: another tensor for "
                f"{self._names[id(parameter)]}. Change it in place."
            )

    def _backward(self, loss: torch.Tensor, gradient: Any = None, *_: Any, **others: Any) -> None:
        number = self.number(loss)
        if self.loss is not None or number is None or gradient is not None or any(others.values()):
            raise UnsupportedOpError(
                "backward: must be called once in a step, on a loss of that step, without further "
                "arguments. Received: another call. Add the losses, and call it once."
            )
        self.loss = number

    def _result(self, item: Any) -> Optional[int]:
        """The number of a result; None for what is no tensor, or a changed tensor of the model."""
        if not isinstance(item, torch.Tensor) or id(item) in self._names:
            return None
        return None if id(item) in self._gradient_names else self._add(item)

    def _add(self, tensor: torch.Tensor) -> int:
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self._numbers)
            self._alive.append(tensor)  # so that no other object gets its id
        return number

    def _without_data(self, item: Any) -> Any:
        """A fake tensor in place of one of the model, which a call must not change."""
        if not isinstance(item, torch.Tensor) or self._is_fake(item):
            return item
        fake = internals.fake_of(self._fake, item)
        if id(item) in self._names:
            self._names[id(fake)] = self._names[id(item)]
        self._alive.append(fake)
        return fake

    def _is_fake(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._numbers or id(tensor) in self._gradient_names

    def _leaf(self, item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if id(item) in self._gradient_names:
            return Gradient(self._gradient_names[id(item)])
        if id(item) in self._numbers:
            return Recorded(self._numbers[id(item)])
        if id(item) in self._names:
            return Held(self._names[id(item)])
        if item.nbytes > _CONSTANT_BYTES:
            raise UnsupportedOpError(
                "step: large tensors must be parameters or buffers of the model, or of the batch. "
                f"Received: another of shape {list(item.shape)}. Register it as a buffer."
            )
        data = item.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return Constant(item.dtype, tuple(item.shape), data)


# The getter and the setter of a tensor's `grad`.
_GRAD = (torch.Tensor.grad.__get__, torch.Tensor.grad.__set__)


def _called(
    calls: Iterable[Call], model: torch.nn.Module, found: dict[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Makes calls; returns all tensors by number.

    Args:
        found: the tensors that exist before.
    """

    def tensor_of(leaf: Any) -> Any:
        if isinstance(leaf, Recorded):
            return found[leaf.number]
        if isinstance(leaf, Held):
            return _member(model, leaf.name)
        if isinstance(leaf, Gradient):
            parameter = _member(model, leaf.name)
            return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if isinstance(leaf, Constant):
            data = bytearray(leaf.data)
            flat = torch.frombuffer(data, dtype=leaf.dtype) if data else torch.empty(0)
            return flat.to(leaf.dtype).reshape(leaf.shape).clone()
        return leaf

    for call in calls:
        args, keys = internals.nested(map(tensor_of, call.given), call.structure)
        values = internals.leaves(call.function(*args, **keys))
        for number, value in zip(call.results, values):
            if number is not None:
                found[number] = value
    return found


def _number_of(leaf: Any) -> Optional[int]:
    return leaf.number if isinstance(leaf, Recorded) else None


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))


def _changes_first(function: Callable[..., Any]) -> bool:
    """Whether a call changes its first argument, by PyTorch's rule for names."""
    name = _name(function)
    return name.endswith("_") and not name.endswith("__") and name != "requires_grad_"


def _has_effect(function: Callable[..., Any]) -> bool:
    """Whether a call that returns no tensor is part of the step."""
    return _name(function) in ("_set_grad_enabled", "__setitem__")


def _member(model: torch.nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    tensor: torch.Tensor = getattr(model.get_submodule(path), last)
    return tensor
