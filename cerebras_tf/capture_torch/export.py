"""Exports a model with its loss as a graph of aten ops, and lowers it for types of a batch."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import random
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union
from unittest import mock

import numpy as np
import torch

from cerebras_tf.capture_torch import (  # noqa: F401  # these register their rules
    attention,
    elementwise,
    internals,
    losses,
    normalization,
    products,
    random_numbers,
    shapes,
)
from cerebras_tf.capture_torch.autograd_functions import differentiated, trace_function
from cerebras_tf.capture_torch.causal_masks import plain_causal_masks
from cerebras_tf.capture_torch.lowering import DTYPES, Lowering, array_of, location
from cerebras_tf.capture_torch.python_state import keeping_values
from cerebras_tf.capture_torch.registry import RULES
from cerebras_tf.errors import ConfigError, DataError, UnsupportedOpError
from cerebras_tf.ir import Size, TensorType, Value, Variable

Batch = Mapping[str, torch.Tensor]
# The loss of a batch; by default what the model returns, or the `loss` of it. In a mapping, `loss`
# is the loss, and the other tensors are outputs.
LossFunction = Callable[
    [torch.nn.Module, dict[str, torch.Tensor]], Union[torch.Tensor, Mapping[str, torch.Tensor]]
]
LOSS = "loss"
# A size of a tensor of the batch in a condition of torch.export.
_SIZE = re.compile(r"L\['batch'\]\['(.*?)'\]\.size\(\)\[(\d+)\]")
# aten ops through which no gradient passes.
_DETACHING = re.compile(r"detach|_local_scalar_dense|\.item\b")
# Batch normalization by statistics of the batch, if its argument `training` is true.
_BATCH_NORM = re.compile(r"batch_norm(_legit(_functional)?)?\.(default|no_stats)$")
# Buffers that checkpoints leave out are constants up to this size, such as positions and masks.
_CONSTANT_BYTES = 1 << 20


class ExportedModel:
    """A model and its loss as a graph, for all sizes of a batch that the model allows.

    The graph is that of the model's current mode, train or eval. Tied parameters are one variable.

    Args:
        module: the model; tensors of a batch are keyword arguments of its forward.
        example: a batch; dtypes and shapes are read.
        loss: computes the loss; see LossFunction.
        open_axes: axes that differ from batch to batch, by the name of a tensor. By default axis 0
            of every tensor, and axis 1 of tensors of integers and bool.
        stored: dtypes in which variables are stored, by name, where they differ from that of the
            tensor. Such variables are not trained.

    Attributes:
        features: dtype and shape of every tensor of a batch, with None for open sizes.
        open_sizes: the symbol of every open size of these.
        specs: parameters and buffers.
        tensors: their torch tensors.
        ties: further names of tensors, with the first name of each.
        trained: names of the parameters that a gradient reaches.
        outputs: dtype and shape of further outputs of the loss function, by name.

    Raises:
        ConfigError: the loss is not a scalar.
        UnsupportedOpError: the model cannot be exported, or contains what changes gradients outside
            of the graph (hooks, custom autograd functions).
    """

    def __init__(
        self,
        module: torch.nn.Module,
        example: Batch,
        loss: Optional[LossFunction] = None,
        open_axes: Optional[Mapping[str, Sequence[int]]] = None,
        stored: Optional[Mapping[str, str]] = None,
    ) -> None:
        _check(module, example)
        self._stored = dict(stored or {})
        known = {name for name, _ in module.named_parameters()}
        _require_known("stored", self._stored, known, "parameters of the model")
        _require_known("open_axes", open_axes or {}, example, "tensors of the batch")
        outputs = [[LOSS]]
        self._wrapped = _WithLoss(module, loss, outputs.append)
        with internals.fake_parameters(self._wrapped):
            self._program = _exported(self._wrapped, example, open_axes)
        self._conditions = internals.size_conditions(self._program)
        self._batch_norms = list(_sizes_of_batch_norms(self._program.graph))
        self._checked_sizes: set[frozenset[tuple[str, tuple[int, ...]]]] = set()
        self._roles = {spec.arg.name: spec for spec in self._program.graph_signature.input_specs}
        self._read_state(module)
        places = [
            node
            for node in self._program.graph.nodes
            if node.op == "placeholder" and self._roles[node.name].kind.name == "USER_INPUT"
        ]
        # The order of a dict is that of its tensors.
        self._places = {node.name: name for node, name in zip(places, example)}
        self._inputs = {name: node.meta["val"] for node, name in zip(places, example)}
        self.features = {
            name: (
                DTYPES[value.dtype],
                tuple(size if isinstance(size, int) else None for size in value.shape),
            )
            for name, value in self._inputs.items()
        }
        self.open_sizes = {
            name: tuple(internals.symbol_of(size) for size in value.shape)
            for name, value in self._inputs.items()
        }
        self._read_outputs(outputs[-1])
        self.trained = self._reached()

    def _read_state(self, module: torch.nn.Module) -> None:
        """Names every parameter and buffer by its first name in the model."""
        pairs = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        first: dict[int, str] = {}
        self._names: dict[str, str] = {}  # of the wrapped module -> of the model
        self.tensors: dict[str, torch.Tensor] = {}
        self.ties: dict[str, str] = {}
        for name, tensor in pairs:
            known = first.setdefault(id(tensor), name)
            self._names[f"model.{name}"] = known
            self.tensors[known] = tensor
            if known != name:
                self.ties[name] = known
        mutated = {
            self._names[str(spec.target)]
            for spec in self._program.graph_signature.output_specs
            if spec.kind.name == "BUFFER_MUTATION"
        }
        kept = set(module.state_dict(keep_vars=True)) | mutated
        self._constants = {
            name
            for name, tensor in self.tensors.items()
            if name not in kept and tensor.nbytes <= _CONSTANT_BYTES
        }
        self.specs = {
            name: Variable(
                name,
                TensorType(self._stored.get(name, DTYPES[tensor.dtype]), tuple(tensor.shape)),
                isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad,
            )
            for name, tensor in self.tensors.items()
            if name not in self._constants
        }

    def _read_outputs(self, keys: list[str]) -> None:
        """Finds the loss and the outputs in the graph."""
        signature = self._program.graph_signature
        names = [s.arg.name for s in signature.output_specs if s.kind.name == "USER_OUTPUT"]
        nodes = {
            node.name: node
            for node in self._program.graph.nodes
            if isinstance(node.meta.get("val"), torch.Tensor)
        }
        if len(names) != len(keys) or not set(names) <= set(nodes):
            received = ", ".join(sorted(map(str, names))).strip() or "no tensor"
            raise ConfigError(
                f"loss: must be one tensor. Received: {received}. Return the loss; models of "
                "transformers need labels in the batch."
            )
        self._outputs = {key: nodes[name] for key, name in zip(keys, names)}
        self._loss: Optional[torch.fx.Node] = self._outputs.pop(LOSS, None)
        self.outputs = {
            name: (
                DTYPES[node.meta["val"].dtype],
                tuple(size if isinstance(size, int) else None for size in node.meta["val"].shape),
            )
            for name, node in self._outputs.items()
        }
        if self._loss is None:
            return
        value = self._loss.meta["val"]
        if value.shape or not value.is_floating_point():
            raise ConfigError(
                f"loss: must be a floating point scalar. Received: {value.dtype} of shape "
                f"{list(value.shape)}. Pass a loss function that reduces it."
            )

    @property
    def has_loss(self) -> bool:
        """Whether the model has a loss, and not only outputs."""
        return self._loss is not None

    def _reached(self) -> list[str]:
        """Trainable parameters that the loss depends on through differentiable values."""
        seen: set[torch.fx.Node] = set()
        stack = [] if self._loss is None else [self._loss]
        while stack:
            node = stack.pop()
            if node in seen or _DETACHING.search(str(node.target)):
                continue
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not _is_differentiable(value):
                continue
            seen.add(node)
            stack += differentiated(node)
        names = {
            self._names.get(str(self._roles[node.name].target))
            for node in seen
            if node.op == "placeholder"
        }
        return [name for name, spec in self.specs.items() if spec.trainable and name in names]

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters, each once."""
        return [t for t in self.tensors.values() if isinstance(t, torch.nn.Parameter)]

    @property
    def graph(self) -> torch.fx.GraphModule:
        """The exported graph."""
        return self._program.graph_module

    def constants(self) -> dict[str, torch.Tensor]:
        """Tensors that are constants of the graph, by the name of its input."""
        found = {}
        for place, role in self._roles.items():
            name = self._names.get(str(role.target))
            if name in self._constants:
                found[place] = self.tensors[name]
            elif name is None and role.target is not None:
                found[place] = self._program.constants[role.target]
        return found

    def inputs(self) -> list[str]:
        """What every input of the graph is: the name of a tensor of the batch, or of a variable."""
        return [
            f"{place}: {self._places.get(place)} {self._names.get(str(role.target))}"
            for place, role in self._roles.items()
        ]

    def check_sizes(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks the sizes of a batch.

        Raises:
            UnsupportedOpError: the model takes another branch for them.
            DataError: batch normalization would get a single value per channel.
        """
        known = frozenset(sizes.items())
        if known in self._checked_sizes:
            return
        # torch.export assumes that no size is 1.
        given = {
            name: torch.empty([max(2, size) for size in shape], device="meta")
            for name, shape in sizes.items()
        }
        for condition in self._conditions:
            if not eval(condition, {"L": {"batch": given}, "torch": torch, "math": math}):
                text = _SIZE.sub(r"\1.shape[\2]", condition)
                raise UnsupportedOpError(
                    "model: a branch that depends on the sizes of a batch must be the same in all "
                    f"batches. Received: shapes {dict(sizes)}, but the captured branch needs "
                    f"{text}. Use a model for each branch, or pad to one size."
                )
        values = self.symbols({n: TensorType(self.features[n][0], s) for n, s in sizes.items()})
        for source, factors in self._batch_norms:
            if math.prod(internals.size_value(factor, values) for factor in factors) == 1:
                raise DataError(
                    f"{source}: a batch must have more than one value per channel in "
                    f"training. Received: shapes {dict(sizes)}. Use larger batches, or "
                    "drop_last=True in the loader."
                )
        self._checked_sizes.add(known)

    def symbols(self, types: Mapping[str, TensorType]) -> dict[str, Size]:
        """The sizes of torch's symbols in a batch of these types.

        Raises:
            DataError: sizes that the model requires to be equal differ.
        """
        found: dict[str, Size] = {}
        for name, value in self._inputs.items():
            for axis, (size, given) in enumerate(zip(value.shape, types[name].shape)):
                symbol = internals.symbol_of(size)
                if symbol is None or given is None:
                    continue
                if found.setdefault(symbol, given) != given:
                    raise DataError(
                        f"batch: axis {axis} of {name} must be {found[symbol]}, as the model "
                        f"requires. Received: {given}. Correct the batch."
                    )
        return found

    def lower(
        self, low: Lowering, types: Mapping[str, TensorType]
    ) -> tuple[dict[str, Value], dict[str, Value]]:
        """Lowers the graph.

        Returns:
            Loss and outputs by name, and the new values of buffers that the model changes.
        """
        step = low.step
        for name, type in types.items():
            if name in self._inputs:
                step.features[name] = step.graph.add_input(name, type)
        for name, spec in self.specs.items():
            step.variables[name] = step.graph.add_input(name, spec.type)
            step.specs[name] = spec
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                low.values[node] = self._placeholder(low, self._roles[node.name], node)
        outputs = low.run(self._program.graph_module)
        changed: dict[str, Value] = {}
        for spec, value in zip(self._program.graph_signature.output_specs, outputs):
            if spec.kind.name == "BUFFER_MUTATION":
                changed[self._names[str(spec.target)]] = value
            elif spec.kind.name != "USER_OUTPUT":
                raise UnsupportedOpError(
                    f"model: must change only its own buffers. Received: {spec.kind.name} of "
                    f"{spec.target}. Copy the tensor first."
                )
        given = self._outputs if self._loss is None else {LOSS: self._loss, **self._outputs}
        return {name: low.values[node] for name, node in given.items()}, changed

    def _placeholder(self, low: Lowering, role: Any, node: torch.fx.Node) -> Optional[Value]:
        if role.kind.name == "USER_INPUT":
            return low.step.features[self._places[node.name]]
        if role.target is None:  # the order of effects
            return None
        name = self._names.get(str(role.target))
        if name in self.specs:
            variable, dtype = low.step.variables[str(name)], DTYPES[self.tensors[str(name)].dtype]
            same = variable.dtype == dtype
            return variable if same else low.b.op("cast", variable, dtype=dtype)
        tensor = self._program.constants[role.target] if name is None else self.tensors[name]
        return low.b.constant(array_of(tensor), DTYPES[tensor.dtype])


def _sizes_of_batch_norms(graph: torch.fx.Graph) -> Iterator[tuple[str, list[Any]]]:
    """Where batch normalization by statistics of the batch is, and the sizes of all axes but 1."""
    for node in graph.nodes:
        if _BATCH_NORM.search(str(node.target)) and node.args[5 if len(node.args) > 7 else 3]:
            sizes = node.args[0].meta["val"].shape
            yield location(node), [sizes[0], *sizes[2:]]


def _is_differentiable(value: torch.Tensor) -> bool:
    return bool(value.is_floating_point() or value.is_complex())


class _WithLoss(torch.nn.Module):  # type: ignore[misc]
    """The model as a module that returns the loss."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Optional[LossFunction],
        on_names: Callable[[list[str]], None],
    ) -> None:
        super().__init__()
        self.training = model.training
        self.model = model
        self._on_names = on_names  # export restores attributes that forward sets
        self.loss_function = loss

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        # Within forward, since export restores attributes of modules.
        fix = "Pass what changes from step to step as a tensor of the batch, or count in a buffer."
        values = keeping_values("model", fix, self.model, self.loss_function)
        with values, _written_buffers(self.model):
            return self._results(batch)

    def _results(self, batch: dict[str, torch.Tensor]) -> Any:
        if self.loss_function is None:
            found = self.model(**batch)
            if isinstance(found, Mapping) and LOSS in found:
                return found[LOSS]
            return found[0] if isinstance(found, tuple) else getattr(found, LOSS, found)
        found = self.loss_function(self.model, batch)
        if isinstance(found, Mapping):
            self._on_names(list(found))
            return tuple(found.values())
        return found


@contextlib.contextmanager
def _written_buffers(model: torch.nn.Module) -> Iterator[None]:
    """Within: tensors that forward assigns to buffers are written into these when it ends.

    Raises:
        UnsupportedOpError: such a tensor has another dtype or shape.
    """
    places = [(path, m, key) for path, m in model.named_modules() for key in m._buffers]
    before = [module._buffers[key] for _, module, key in places]
    yield
    for (path, module, key), old in zip(places, before):
        new = module._buffers.get(key)
        if new is old:
            continue
        received = "none" if new is None else f"{new.dtype} of shape {list(new.shape)}"
        if old is None or new is None or new.dtype != old.dtype or new.shape != old.shape:
            wanted = "no tensor" if old is None else f"{old.dtype} of shape {list(old.shape)}"
            raise UnsupportedOpError(
                f"model: a buffer must keep its dtype and shape. Received: {received} for "
                f"{f'{path}.{key}'.lstrip('.')}, was {wanted}. Register it with that shape."
            )
        with torch.no_grad():
            old.copy_(new)
        module._buffers[key] = old


def _require_known(what: str, names: Iterable[str], known: Collection[str], kind: str) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"{what}: names must be of {kind}. Received: {unknown[0]}.")


def check_batch(batch: Any) -> None:
    """Raises DataError for a batch that is no mapping of tensors that can be read."""
    if not isinstance(batch, Mapping):
        raise DataError(
            "batch: must be a dict of tensors, by the model's arguments. Received: "
            f"{type(batch).__name__}."
        )
    for name, tensor in batch.items():
        if not isinstance(tensor, torch.Tensor):
            raise DataError(
                f"batch: every value must be a tensor. Received: {type(tensor).__name__} for "
                f"{name}. Convert or remove it."
            )
        if tensor.dtype not in DTYPES or tensor.dtype == torch.bfloat16:
            raise DataError(
                "batch: tensors must be float64, float32, float16, bool or of integers. Received: "
                f"{tensor.dtype} for {name}. Convert it; precision sets that of products."
            )
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise DataError(
                f"batch: tensors must be dense and on the CPU. Received: {tensor.layout} on "
                f"{tensor.device} for {name}. Convert it in the collate function."
            )


def _check(module: torch.nn.Module, example: Batch) -> None:
    check_batch(example)
    empty = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if empty:
        raise ConfigError(
            f"model: buffers must have data. Received: {', '.join(empty[:3])} on the meta device. "
            "Only parameters may be there."
        )
    hooked = internals.gradient_hooks(module)
    if hooked:
        raise UnsupportedOpError(
            "model: hooks must not change gradients. Received: backward hooks of "
            f"{', '.join(hooked)}. Remove them."
        )


def _require_no_draws(python_state: Any, numpy_state: Any) -> None:
    """Raises UnsupportedOpError if the model drew random numbers outside of torch."""
    state = np.random.get_state(legacy=False)["state"]
    same_numpy = state["pos"] == numpy_state["pos"] and np.array_equal(
        state["key"], numpy_state["key"]
    )
    for name, same in (("random", random.getstate() == python_state), ("numpy.random", same_numpy)):
        if not same:
            raise UnsupportedOpError(
                f"model: random numbers must be drawn by torch. Received: a draw from {name}, "
                "which would be the same in every step. Draw in the data loader, or use torch.rand."
            )


@contextlib.contextmanager
def _symbolic_lengths(module: _WithLoss) -> Iterator[None]:
    """Within: len(tensor) in the files of the model and of the loss is a size that may differ."""

    def length(x: Any) -> Any:
        return x.shape[0] if isinstance(x, torch.Tensor) and x.ndim else len(x)

    functions = [module.loss_function, *(type(item).forward for item in module.modules())]
    files = {id(names): names for names in (_globals(f) for f in functions) if names}
    with contextlib.ExitStack() as stack:
        for names in files.values():
            package = str(names.get("__name__")).partition(".")[0]  # none in code of exec
            if package not in ("torch", "cerebras_tf") and "len" not in names:
                stack.enter_context(mock.patch.dict(names, {"len": length}))
        yield


def _globals(function: Any) -> dict[str, Any]:
    """The global names of a function's file."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(inspect.unwrap(function), "__globals__", {}) if function else {}


def _exported(
    module: _WithLoss, example: Batch, open_axes: Optional[Mapping[str, Sequence[int]]]
) -> torch.export.ExportedProgram:
    dynamic, given = {}, {}
    for name, tensor in example.items():
        axes: Sequence[int] = range(min(tensor.ndim, 1 if tensor.is_floating_point() else 2))
        if open_axes is not None:
            axes = open_axes.get(name, ())
        dynamic[name] = dict.fromkeys(axes, torch.export.Dim.AUTO)
        for axis in axes:
            if tensor.shape[axis] == 1:  # export takes a size of 1 for a constant
                tensor = torch.cat([tensor, tensor], axis)
        given[name] = tensor.clone()  # export cannot trace a part of another tensor
    traced = internals.tracing_errors(
        "model: torch.export must be able to trace it",
        "Give it a batch that its forward accepts, and remove branches that depend on data.",
    )
    with traced, internals.true_reductions(), warnings.catch_warnings():
        # torch's own use of its deprecated names
        warnings.filterwarnings("ignore", category=FutureWarning)
        with (
            internals.export_overrides(trace_function),
            plain_causal_masks(),
            _symbolic_lengths(module),
        ):
            states = random.getstate(), np.random.get_state(legacy=False)["state"]
            program = torch.export.export(module, (given,), dynamic_shapes=(dynamic,), strict=False)
            _require_no_draws(*states)
        internals.detach_no_grad(program)
        return program.run_decompositions(dict(internals.decompositions(frozenset(RULES))))
