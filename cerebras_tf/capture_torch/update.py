"""Traces what a training loop does after `loss.backward()`: clipping and the optimizer's step."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional
from unittest import mock

import numpy as np
import torch

from cerebras_tf.capture_torch import internals
from cerebras_tf.capture_torch.lowering import DTYPES, Lowering, array_of
from cerebras_tf.capture_torch.python_state import keeping_values
from cerebras_tf.capture_torch.update_state import (
    LOSS_SCALE,
    AverageState,
    ScalerState,
    UntracedState,
    traced_states,
)
from cerebras_tf.errors import CheckpointError, ConfigError, UnsupportedOpError
from cerebras_tf.ir import Array, TensorType, Value, Variable

Parameters = Mapping[str, torch.Tensor]
# A feature, float64 []: the learning rate of a group of parameters.
RATE = "learning_rate/{}"
_RATES = ("lr", "initial_lr")  # keys of groups
# Keys of the moving averages of torch's Adam, AdamW, NAdam, RAdam and Adamax.
_MOMENTS = ("exp_avg", "exp_avg_sq")


class TracedUpdate:
    """The update of the parameters as the user wrote it, as a graph.

    Args:
        module: the model.
        optimizer: a torch optimizer whose step has no branch that depends on data.
        parameters: those that have a gradient, by name.
        update: is called without arguments where a training loop has its gradients. It may change
            the gradients of `module.parameters()` and must call `optimizer.step()`, which is the
            default. It may call a GradScaler, which then scales the loss, and AveragedModels.

    Attributes:
        stored: storage dtypes of slots, where they differ from the optimizer's.

    Raises:
        UnsupportedOpError: the update cannot be traced, or its first step differs from later ones.

    Example:
        def update():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: Parameters,
        update: Optional[Callable[[], Any]] = None,
    ) -> None:
        self._module, self._optimizer = module, optimizer
        self._run = update or optimizer.step
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        unknown = own - {id(p) for p in module.parameters()}
        if unknown:
            raise ConfigError(
                "optimizer: its parameters must be the model's. Received: "
                f"{len(unknown)} others. Make it from model.parameters()."
            )
        self._gradients = list(parameters)
        self._trained = {name: p for name, p in parameters.items() if id(p) in own}
        if not self._trained:
            raise ConfigError(
                "optimizer: must have parameters that the loss depends on. Received: none, of "
                f"{len(own)} parameters. Make it from model.parameters()."
            )
        half = [name for name, p in self._trained.items() if p.dtype == torch.bfloat16]
        if half:
            raise ConfigError(
                f"model: trained parameters must be float32. Received: {half[0]} and "
                f"{len(half) - 1} others in bfloat16. Call model.float(); precision='bfloat16' "
                "computes products in bfloat16."
            )
        _require_own_memory(module, own)
        self._settings, self._members = self._fixed_settings(), self._group_members()
        self._others: list[Any] = []  # states of objects that the update calls
        with _traceable(optimizer):
            self._states = _first_states(optimizer, self._trained)
        self.stored: dict[str, str] = {}
        steps: list[Any] = []
        hook = optimizer.register_step_post_hook(lambda *given: steps.append(given))
        try:
            self._graph = self._trace(parameters)
            _require_no_writes(self._graph.graph, len(optimizer.param_groups))
        finally:
            hook.remove()
        if not steps:
            raise ConfigError(
                "update: must call optimizer.step(). Received: a function that does not, so no "
                "parameter would change."
            )

    @property
    def graph(self) -> torch.fx.GraphModule:
        """The traced graph."""
        return self._graph

    @property
    def specs(self) -> dict[str, Variable]:
        """Variables of the optimizer's state, in their storage dtypes."""
        return {
            name: Variable(
                name, TensorType(self.stored.get(name, DTYPES[value.dtype]), tuple(value.shape))
            )
            for name, value in self._tensors().items()
        }

    def _tensors(self) -> dict[str, torch.Tensor]:
        found = {
            f"{name}/{key}": value
            for name, state in self._states.items()
            for key, value in state.tensors.items()
        }
        for other in self._others:
            found.update(other.first)
        return found

    def first_value(self, name: str) -> Array:
        """The value of a slot before the first step."""
        return np.asarray(array_of(self._tensors()[name]))

    def store_moments(self, dtype: str) -> None:
        """Stores the moments of Adam and its variants in a dtype.

        Raises:
            ConfigError: the optimizer has none.
        """
        moments = [
            name
            for name, value in self._tensors().items()
            if name.rpartition("/")[2] in _MOMENTS and value.dtype == torch.float32 and value.ndim
        ]
        if not moments:
            raise ConfigError(
                "memoryx_moment_dtype: the optimizer must have moving averages of gradients, "
                f"{' and '.join(_MOMENTS)}, as Adam and AdamW do. Received: "
                f"{type(self._optimizer).__name__}. Remove memoryx_moment_dtype."
            )
        self.stored = dict.fromkeys(moments, dtype)

    def groups(self) -> list[dict[str, Any]]:
        """The settings of the optimizer's groups, with the names of their parameters."""
        names = {id(p): name for name, p in self._module.named_parameters()}
        return [
            {**group, "params": [names[id(p)] for p in group["params"]]}
            for group in self._optimizer.param_groups
        ]

    def restore_rates(self, groups: Sequence[Mapping[str, Any]]) -> list[str]:
        """Sets the learning rates to those of a checkpoint.

        Args:
            groups: what `groups` returned.

        Returns:
            Lines about settings that differ, and which of both are used.

        Raises:
            CheckpointError: the groups have other parameters.
        """
        own = self.groups()
        if [group["params"] for group in own] != [group["params"] for group in groups]:
            raise CheckpointError(
                "optimizer: its groups must have the parameters of the checkpoint. Received: "
                f"{len(own)} groups, and {len(groups)} in the checkpoint. Make the optimizer in "
                "the same way."
            )
        lines = []
        for index, (group, saved) in enumerate(zip(self._optimizer.param_groups, groups)):
            for key in sorted(group.keys() & saved.keys() - {"params"}):
                is_restored = key in _RATES
                # A scheduler changes the rate that its first one is compared for.
                is_known = key == "lr" and "initial_lr" in group
                if group[key] != saved[key] and not is_known:
                    lines.append(
                        f"optimizer: {key} of group {index} is {group[key]} in this call, "
                        f"{saved[key]} in the checkpoint; "
                        f"{'the checkpoint' if is_restored else 'this call'}'s is used"
                    )
            group.update({key: saved[key] for key in _RATES if key in saved})
        return lines

    def copy_back(self, value: Callable[[str], torch.Tensor]) -> None:
        """Sets the optimizer's state of parameters that have data.

        Args:
            value: the tensor of a slot, by name.
        """
        for name, state in self._states.items():
            if self._trained[name].is_meta:
                continue
            found = self._optimizer.state[self._trained[name]]
            found.update(state.others)
            for key, old in state.tensors.items():
                found[key] = value(f"{name}/{key}").to(old.dtype)
        for other in self._others:
            other.copy_back(value)

    def rates(self) -> dict[str, Array]:
        """The learning rates that the optimizer has now, as features of a step.

        Raises:
            ConfigError: the groups were changed since the update was traced.
        """
        if self._group_members() != self._members:
            raise ConfigError(
                "optimizer: groups and requires_grad of parameters must not change. Received: a "
                "change since the first step. Call fit, or make a TorchModel, again."
            )
        for index, (old, new) in enumerate(zip(self._settings, self._fixed_settings())):
            changed = [key for key in new if new[key] != old.get(key)]
            if changed:
                raise ConfigError(
                    f"optimizer: only the learning rate may change. Received: {changed[0]} = "
                    f"{new[changed[0]]} in group {index}, was {old.get(changed[0])}."
                )
        return {
            RATE.format(index): np.array(float(group["lr"]), np.float64)
            for index, group in enumerate(self._optimizer.param_groups)
        }

    def _fixed_settings(self) -> list[dict[str, Any]]:
        varying = ("params", *_RATES)
        return [
            {key: value for key, value in group.items() if key not in varying}
            for group in self._optimizer.param_groups
        ]

    def _group_members(self) -> list[list[tuple[int, bool]]]:
        return [
            [(id(p), p.requires_grad) for p in group["params"]]
            for group in (*self._optimizer.param_groups, {"params": self._module.parameters()})
        ]

    @property
    def skips_overflows(self) -> bool:
        """Whether a GradScaler takes back steps with gradients that are not finite."""
        return LOSS_SCALE in self._tensors()

    def scaled(self, low: Lowering, loss: Value) -> Value:
        """The loss, multiplied by the scale of the GradScaler if there is one."""
        if not self.skips_overflows:
            return loss
        scale = self._input(low, LOSS_SCALE, self.specs[LOSS_SCALE])
        return low.b.op("mul", loss, low.value(scale, loss.dtype))

    @staticmethod
    def _input(low: Lowering, name: str, spec: Variable) -> Value:
        step = low.step
        if name not in step.variables:
            step.variables[name] = step.graph.add_input(name, spec.type)
            step.specs[name] = spec
        return step.variables[name]

    def lower(self, low: Lowering, gradients: Mapping[str, Value]) -> dict[str, Value]:
        """Lowers the update; returns new values of parameters and state, by name."""
        low.differentiates = False
        step = low.step
        tensors, slots = self._tensors(), {}
        for name, spec in self.specs.items():
            slots[name] = low.value(self._input(low, name, spec), DTYPES[tensors[name].dtype])
        for name in self.rates():
            step.features[name] = step.graph.add_input(name, TensorType("float64", ()))
        given = [
            *(step.variables[name] for name in self._gradients),
            *(gradients[name] for name in self._gradients),
            *slots.values(),
            *(step.features[name] for name in self.rates()),
        ]
        places = [node for node in self._graph.graph.nodes if node.op == "placeholder"]
        low.values.update(zip(places, given))
        outputs = low.run(self._graph)
        found = dict(zip([*self._trained, *slots], outputs))
        return {n: low.rounded(v, n) if n in self.stored else v for n, v in found.items()}

    def _trace(self, parameters: Parameters) -> torch.fx.GraphModule:
        """Traces the update, again if it calls an object whose state is not known yet."""
        while True:
            try:
                return self._traced(parameters)
            except UntracedState as found:
                self._others.append(self._state_of(found.owner))

    def _state_of(self, owner: Any) -> Any:
        if isinstance(owner, torch.amp.GradScaler):
            if self.skips_overflows:
                raise UnsupportedOpError("update: must use one GradScaler. Received: two.")
            return ScalerState(owner, self._optimizer)
        count = sum(isinstance(other, AverageState) for other in self._others)
        return AverageState(owner, self._module, self._gradients, count)

    def _traced(self, parameters: Parameters) -> torch.fx.GraphModule:
        names, held = self._gradients, list(parameters.values())
        examples = [torch.empty((), dtype=p.dtype).expand(p.shape) for p in held]
        values = [state.tensors for state in self._states.values()]
        slots = [
            [torch.empty((), dtype=v.dtype).expand(v.shape) for v in tensors.values()]
            for tensors in (*values, *(other.first for other in self._others))
        ]
        rates = [torch.zeros((), dtype=torch.float64) for _ in self._optimizer.param_groups]

        def function(params: Any, grads: Any, slots: Any, rates: Any) -> Any:
            new = [p.clone() for p in params]
            for tensor, gradient in zip(new, grads):
                tensor.grad = gradient.clone()
            by_name, states = dict(zip(names, new)), {}
            for other, values in zip(self._others, slots[len(self._states) :]):
                other.begin(dict(zip(other.first, (v.clone() for v in values))), by_name)
            for (name, state), values in zip(self._states.items(), slots):
                tensors = {key: first(key, v) for key, v in zip(state.tensors, values)}
                states[by_name[name]] = {**state.others, **tensors}
            replaced = dict(zip(held, new))
            with (
                internals.replaced_parameters(self._module, replaced),
                _driven(self._optimizer, replaced, states, rates, branchless),
                traced_states(self._others),
            ):
                before = [dict(group) for group in self._optimizer.param_groups]
                with keeping_values("update", "Use a scheduler.", self._run):
                    self._run()
                _require_same_settings(before, self._optimizer.param_groups)
            found = [
                [states[by_name[name]][key].to(v.dtype) for key, v in state.tensors.items()]
                for name, state in self._states.items()
            ]
            found += [[*other.tensors.values()] for other in self._others]
            return [by_name[name] for name in self._trained], found

        branchless = False

        def first(key: str, value: torch.Tensor) -> torch.Tensor:
            # torch computes with Python floats where it branches on the step.
            return value.double() if branchless and key == "step" else value.clone()

        with torch.no_grad(), _traceable(self._optimizer):
            if any("capturable" in group for group in self._optimizer.param_groups):
                try:
                    return internals.trace(function, [examples, examples, slots, rates])
                except internals.DATA_DEPENDENT:
                    branchless = True
            return internals.trace(function, [examples, examples, slots, rates])


def _require_no_writes(graph: torch.fx.Graph, groups: int) -> None:
    """Raises ConfigError if an update changes a learning rate or a tensor of others in place."""
    nodes = list(graph.nodes)
    rates = [node for node in nodes if node.op == "placeholder"][-groups:]
    for node in nodes:
        if node.target is torch.ops.aten.copy_.default:
            place = node.args[0]
            index = rates.index(place) if place in rates else None
            what = "another tensor" if index is None else f"lr in group {index}"
            raise ConfigError(
                "update: must not change settings of the optimizer, or other tensors than the "
                f"model's. Received: a change of {what}. "
                f"{'Remove it' if index is None else 'Pass a scheduler'}."
            )


def _require_own_memory(module: torch.nn.Module, trained: set[int]) -> None:
    """Raises ConfigError if a trained parameter, given by id, shares elements with a tensor."""
    storages: dict[int, list[tuple[int, int, str, torch.Tensor]]] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.numel() and not tensor.is_meta:
            first = tensor.storage_offset()
            last = first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
            size, key = tensor.itemsize, tensor.untyped_storage().data_ptr()
            found = (first * size, last * size, name, tensor)
            storages.setdefault(key, []).append(found)
    for tensors in storages.values():
        tensors.sort(key=lambda item: item[:3])
        for at, (_, end, name, tensor) in enumerate(tensors):
            for start, _, other, shared in tensors[at + 1 :]:
                if start > end:
                    break
                if trained & {id(tensor), id(shared)} and _overlap(tensor, shared):
                    raise ConfigError(
                        "model: a trained parameter must not share memory with another tensor. "
                        f"Received: {name} and {other}. Tie them with `a.weight = b.weight`, or "
                        "clone one."
                    )


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether tensors of one storage have an element in common."""
    if first.dtype != second.dtype:
        return True
    size = first.untyped_storage().nbytes() // first.itemsize
    marks = torch.zeros(size, dtype=torch.bool)
    for tensor in (first, second):
        place = marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if place.any():
            return True
        place.fill_(True)
    return False


def _require_same_settings(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raises ConfigError if an update changed settings, which would change once, in the trace."""
    for index, (old, new) in enumerate(zip(before, after)):
        changed = [key for key in new if new[key] is not old.get(key)]
        if changed:
            raise ConfigError(
                f"update: must not change settings of the optimizer. Received: a change of "
                f"{changed[0]} in group {index}. Pass a scheduler."
            )


def _traceable(optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
    return internals.tracing_errors(
        f"optimizer {type(optimizer).__name__}: its step must be traceable",
        "Use one without closures and without branches that depend on data, and change only the "
        "model's own tensors.",
    )


@contextlib.contextmanager
def _driven(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[torch.Tensor, torch.Tensor],
    states: Mapping[torch.Tensor, dict[str, Any]],
    rates: Sequence[torch.Tensor],
    branchless: bool,
) -> Iterator[None]:
    """Within: the optimizer steps on other tensors, with other state and learning rates.

    Args:
        branchless: whether it uses the formulas for CUDA graphs, which do not branch on the step.
    """
    groups, state = optimizer.param_groups, optimizer.state
    plain = {"foreach": False, "fused": False, **({"capturable": True} if branchless else {})}
    optimizer.param_groups = [
        {
            **group,
            **{key: value for key, value in plain.items() if key in group},
            "lr": rate,
            "params": [tensors[p] for p in group["params"] if p in tensors],
        }
        for group, rate in zip(groups, rates)
    ]
    optimizer.state = defaultdict(dict, states)
    compiling = mock.patch.object(torch.compiler, "is_compiling", lambda: True)
    try:
        with compiling if branchless else contextlib.nullcontext():
            yield
    finally:
        optimizer.param_groups, optimizer.state = groups, state


@dataclass
class _State:
    """The state of a parameter before the first step: tensors, and what else never changes."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)


class _Recorder(dict[str, Any]):
    """State of a parameter that keeps the value every key was first set to."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self.first:
            self.first[key] = value.clone() if isinstance(value, torch.Tensor) else value
        super().__setitem__(key, value)


def _first_states(optimizer: torch.optim.Optimizer, parameters: Parameters) -> dict[str, _State]:
    """The state that the optimizer has, or that its first step makes, by parameter."""
    states: dict[str, _State] = {}
    samples: dict[tuple[int, int, torch.dtype], tuple[tuple[int, ...], _State]] = {}
    for index, group in enumerate(optimizer.param_groups):
        for name, parameter in parameters.items():
            if not any(parameter is p for p in group["params"]):
                continue
            present = optimizer.state.get(parameter)
            if present:
                states[name] = _split(present, present)
                continue
            kind = (index, parameter.ndim, parameter.dtype)
            if kind not in samples:
                shape = tuple(range(2, 2 + parameter.ndim))
                samples[kind] = shape, _sampled(optimizer, group, shape, parameter.dtype)
            shape, sample = samples[kind]
            states[name] = _State(
                {
                    key: _filled(optimizer, key, value, parameter, shape)
                    for key, value in sample.tensors.items()
                },
                sample.others,
            )
    return {name: states[name] for name in parameters}


def _split(first: Mapping[str, Any], last: Mapping[str, Any]) -> _State:
    state = _State()
    for key, value in first.items():
        if isinstance(value, torch.Tensor):
            state.tensors[key] = value.detach()
        elif value is not None and last.get(key) == value:
            state.others[key] = value
        else:
            raise UnsupportedOpError(
                f"optimizer: state that changes must be tensors. Received: {key} = {value}. "
                "Use torch.optim's optimizers, or store it as a tensor."
            )
    return state


def _filled(
    optimizer: torch.optim.Optimizer,
    key: str,
    sample: torch.Tensor,
    parameter: torch.Tensor,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """The value of a slot for a parameter, from that for a small one of the same rank."""
    number = sample.reshape(-1)[0]
    # Sizes of the small one are all different.
    sizes = {1: 1, **dict(zip(shape, parameter.shape))}
    if not all(size in sizes for size in sample.shape) or not bool((sample == number).all()):
        raise UnsupportedOpError(
            f"optimizer {type(optimizer).__name__}: state must be constant, and have axes of its "
            f"parameter or of size 1. Received: {key} of shape {list(sample.shape)}."
        )
    return number.expand([sizes[size] for size in sample.shape])


def _sampled(
    optimizer: torch.optim.Optimizer, group: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> _State:
    """The first state of a small parameter; checks that all steps run the same operations.

    State is recorded with zeros as parameter and gradient, since some optimizers create it from
    these at the end of their first step.
    """
    zeros = torch.zeros(shape, dtype=dtype)
    recorder = _Recorder()
    _step(optimizer, group, zeros, zeros, recorder)
    state = _split(recorder.first, recorder)
    generator = torch.Generator().manual_seed(0)
    value, gradient = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    given: dict[str, Any] = {
        **state.others,
        **{key: tensor.clone() for key, tensor in state.tensors.items()},
    }
    made: dict[str, Any] = {}
    first = _step(optimizer, group, value, gradient, made)
    again = _step(optimizer, group, value, gradient, given)
    if not torch.equal(first, again) or any(
        isinstance(made[key], torch.Tensor) and not torch.equal(made[key], given[key])
        for key in made
    ):
        raise UnsupportedOpError(
            f"optimizer {type(optimizer).__name__}: its first step must do what later ones do. "
            "Received: other results from state before the first step. Set dampening=0 if it is "
            "SGD with momentum."
        )
    return state


def _step(
    optimizer: torch.optim.Optimizer,
    group: Any,
    value: torch.Tensor,
    gradient: torch.Tensor,
    state: dict[str, Any],
) -> torch.Tensor:
    """The parameter after a step from a state, which is changed."""
    parameter = torch.nn.Parameter(value.clone())
    parameter.grad = gradient.clone()
    twin = copy.copy(optimizer)
    twin.param_groups = [dict(group, params=[parameter])]
    twin.state = defaultdict(dict, {parameter: state})
    type(twin).step(twin)
    return parameter.detach()
