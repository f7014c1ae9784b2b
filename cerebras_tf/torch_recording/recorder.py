"""Records the PyTorch calls of a step on tensors without data, and calls them again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
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
        given: leaves of its arguments; a tensor is Recorded, Held or Constant.
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
        calls: in order.
        loss: number of the tensor whose `backward` was called; None for none.
        outputs: numbers of the tensors whose values are read.
        trains: whether the optimizer made a step.
    """

    inputs: tuple[tuple[str, int, torch.dtype, tuple[int, ...]], ...]
    calls: tuple[Call, ...]
    loss: Optional[int]
    outputs: tuple[int, ...]
    trains: bool

    def replay(
        self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """Calls everything again; returns all tensors by number.

        Args:
            batch: tensors for the inputs that are used, by name.
        """
        found = {number: batch[name] for name, number, *_ in self.inputs if name in batch}

        def tensor_of(leaf: Any) -> Any:
            if isinstance(leaf, Recorded):
                return found[leaf.number]
            if isinstance(leaf, Held):
                return _member(model, leaf.name)
            if isinstance(leaf, Constant):
                data = bytearray(leaf.data)
                flat = torch.frombuffer(data, dtype=leaf.dtype) if data else torch.empty(0)
                return flat.to(leaf.dtype).reshape(leaf.shape).clone()
            return leaf

        for call in self.calls:
            args, keys = internals.nested(map(tensor_of, call.given), call.structure)
            values = internals.leaves(call.function(*args, **keys))
            for number, value in zip(call.results, values):
                if number is not None:
                    found[number] = value
        return found

    def used_inputs(self) -> list[str]:
        """Names of the inputs that a call or an output reads."""
        read = {leaf.number for call in self.calls for leaf in call.given if _is_recorded(leaf)}
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
        return Recording(
            tuple(self._inputs), tuple(self._calls), self.loss, tuple(outputs), self.trains
        )

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
            self._calls.append(Call(func, leaves, structure, numbers))
        return result

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
        is_new = isinstance(item, torch.Tensor) and id(item) not in self._names
        return self._add(item) if is_new else None

    def _add(self, tensor: torch.Tensor) -> int:
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self._numbers)
            self._alive.append(tensor)  # so that no other object gets its id
        return number

    def _without_data(self, item: Any) -> Any:
        """A fake tensor in place of one of the model, which a call must not change."""
        if not isinstance(item, torch.Tensor) or id(item) in self._numbers:
            return item
        fake = internals.fake_of(self._fake, item)
        if id(item) in self._names:
            self._names[id(fake)] = self._names[id(item)]
        self._alive.append(fake)
        return fake

    def _leaf(self, item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
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


def _is_recorded(leaf: Any) -> bool:
    return isinstance(leaf, Recorded)


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
