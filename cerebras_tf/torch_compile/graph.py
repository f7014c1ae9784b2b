"""Captures a graph of Dynamo, and lowers it to steps: the forward pass, or both passes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import torch

from cerebras_tf.capture_torch import export, internals  # noqa: F401  # registers the rules
from cerebras_tf.capture_torch.lowering import DTYPES, Lowering, array_of, require_rules, source_of
from cerebras_tf.capture_torch.registry import RULES
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, Size, StepGraph, TensorType, Value, bound_of

# Names of features and results of a step, by position.
INPUT, OUTPUT, CHANGED = "input/{}", "output/{}", "changed/{}"
COTANGENT, GRADIENT = "cotangent/{}", "gradient/{}"
_HALF = torch.bfloat16
# aten ops that are matrix products, and those through which a loss reads one.
_PRODUCTS = re.compile(r"aten\.(linear|matmul|mm|bmm|addmm|baddbmm|conv|einsum|scaled_dot)")
_VIEWS = re.compile(r"aten\.(view|reshape|_to_copy|slice|transpose|t\.|permute|clone|contiguous)")
_LOSSES = re.compile(r"aten\.(cross_entropy|nll_loss)")


class CapturedGraph:
    """A graph of Dynamo as aten ops.

    Args:
        module: Dynamo's graph.

    Attributes:
        outputs: what the graph returns: tensors without data, and sizes.
        same_as_input: positions of inputs that are returned, by the position of the output.
        changed: positions of the inputs that the graph changes.
        computed: positions of the outputs that are new tensors.
        differentiable: positions of the outputs that have a gradient.
        trained: positions of the inputs that have a gradient.
        precision: how the graph is compiled; see compiler.pipeline.Options.
        keep_float32: patterns of products that are not computed in bfloat16; see Options.

    Raises:
        UnsupportedOpError: the graph cannot be captured.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        examples = internals.example_values(module)
        for value in examples:
            _require_plain(value)
        self._examples = examples
        self._symbols = _symbols(examples)
        with internals.tracing_errors("graph: torch must be able to trace it without data", ""):
            after, self.outputs = internals.propagate(module)
            self._traced = internals.trace_functional(module, frozenset(RULES))
        self.changed = self._traced.changed
        self.same_as_input = {
            at: position
            for at, value in enumerate(self.outputs)
            for position, given in enumerate(after)
            if value is given
        }
        self._refuse_aliases(after)
        self.trained = [
            at
            for at, value in enumerate(examples)
            if isinstance(value, torch.Tensor) and value.requires_grad
        ]
        self.computed = [
            at
            for at, value in enumerate(self.outputs)
            if isinstance(value, torch.Tensor) and at not in self.same_as_input
        ]
        self.differentiable = [at for at in self.computed if self.outputs[at].requires_grad]
        require_rules(self._traced.module.graph)
        self.precision, self.keep_float32 = self._find_precision()

    def _refuse_aliases(self, after: Sequence[Any]) -> None:
        """Refuses outputs that are views, and changed inputs that would have a gradient."""
        for position in self.changed:
            if after[position].requires_grad:
                raise UnsupportedOpError(
                    "in-place op: must not change an input that has a gradient. "
                    f"Received: input {position}. Copy the tensor first."
                )
        known = {
            internals.storage_of(value): at
            for at, value in enumerate(after)
            if isinstance(value, torch.Tensor)
        }
        for at, value in enumerate(self.outputs):
            if not isinstance(value, torch.Tensor) or at in self.same_as_input:
                continue
            if known.setdefault(internals.storage_of(value), ~at) != ~at:
                raise UnsupportedOpError(
                    "graph: outputs must not share memory with inputs or with each other. "
                    f"Received: output {at}, a view. Clone it where the graph ends."
                )

    def _find_precision(self) -> tuple[str, tuple[str, ...]]:
        """The precision, and names of the products that are not in a bfloat16 region."""
        nodes = self._traced.module.graph.nodes
        if not any(_dtype(node) == _HALF for node in nodes if node.op != "placeholder"):
            return "float32", ()
        kept = [
            re.escape(source_of(node))
            for node in nodes
            if (_PRODUCTS.match(str(node.target)) and _dtype(node) != _HALF)
            or (_LOSSES.match(str(node.target)) and not _reads_half_product(node))
        ]
        return "bfloat16", tuple(f"^{name}$" for name in kept)

    # What a call passes.

    def sizes(self, args: Sequence[Any]) -> dict[str, int]:
        """The size of every symbol, by name, in a call with these arguments."""
        return {
            name: int(args[at] if axis is None else args[at].shape[axis])
            for name, (at, axis) in self._symbols.items()
        }

    def features(self, args: Sequence[Any], names: Collection[str]) -> dict[str, Any]:
        """The arrays of features of these names. They share memory with the arguments."""
        named = ((INPUT.format(at), value) for at, value in enumerate(args))
        return {name: array_of(value) for name, value in named if name in names}

    def size(self, size: Any, args: Sequence[Any]) -> int:
        """A size that the graph returns, in a call with these arguments."""
        return bound_of(internals.size_of(size, self.sizes(args)))

    # Lowering.

    def lower(self, symbols: Mapping[str, Size], cotangents: Collection[int]) -> StepGraph:
        """Lowers the graph.

        Args:
            symbols: the size of every symbol, by name.
            cotangents: positions of the outputs whose cotangents the backward pass has; none for
                the forward pass alone. The cotangent of a single scalar is 1: gradients are
                multiplied by it later.

        Raises:
            UnsupportedOpError: operations have no IR form.
        """
        step = StepGraph(Graph("graph"))
        low = Lowering(step, 0, symbols)
        inputs: dict[int, Value] = {}
        for at, value in enumerate(self._examples):
            if isinstance(value, torch.Tensor):
                kind = TensorType(DTYPES[value.dtype], low.sizes(value.shape))
                name = INPUT.format(at)
                inputs[at] = step.features[name] = step.graph.add_input(name, kind)
        places = [n for n in self._traced.module.graph.nodes if n.op == "placeholder"]
        for node, tensor in zip(places, self._traced.constants):
            low.values[node] = low.b.constant(array_of(tensor), DTYPES[tensor.dtype])
        for at, node in enumerate(places[len(self._traced.constants) :]):
            if at in inputs:
                low.values[node] = inputs[at]
        found = low.run(self._traced.module)
        step.results = {
            **{CHANGED.format(at): value for at, value in zip(self.changed, found)},
            **{
                OUTPUT.format(at): value
                for at, value in enumerate(found[len(self.changed) :])
                if at in self.computed
            },
        }
        if cotangents:
            low.b.source = "gradient"
            self._differentiate(low, inputs, sorted(cotangents))
        step.graph.inputs = list(step.features.values())
        step.graph.prune()
        return step

    def _differentiate(
        self, low: Lowering, inputs: Mapping[int, Value], cotangents: Sequence[int]
    ) -> None:
        step = low.step
        ys = [step.results[OUTPUT.format(at)] for at in cotangents]
        reached = _reached(ys)
        trained = [at for at in self.trained if inputs[at] in reached]
        dys = []
        if not is_scaled(self, cotangents):
            for at, y in zip(cotangents, ys):
                name = COTANGENT.format(at)
                step.features[name] = step.graph.add_input(name, y.type)
                dys.append(step.features[name])
        attrs = {"ys": len(ys), "dys": (bool(dys),) * len(ys), "xs": len(trained)}
        operands = [*ys, *dys, *(inputs[at] for at in trained)]
        gradients = low.b.multi("gradient", *operands, **attrs)
        step.results.update(zip(map(GRADIENT.format, trained), gradients))


def is_scaled(graph: CapturedGraph, cotangents: Collection[int]) -> bool:
    """Whether gradients are those of one scalar, and are multiplied by its cotangent."""
    return [tuple(graph.outputs[at].shape) for at in cotangents] == [()]


def _symbols(examples: Sequence[Any]) -> dict[str, tuple[int, Optional[int]]]:
    """Position and axis of the argument whose size is a symbol, by its name."""
    found: dict[str, tuple[int, Optional[int]]] = {}
    for at, value in enumerate(examples):
        sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for axis, size in sizes:
            symbol = internals.symbol_of(size)
            if symbol is not None:
                found.setdefault(symbol, (at, axis))
    return found


def _reached(ys: Sequence[Value]) -> set[Value]:
    """The values that the gradient of ys passes through."""
    seen: set[Value] = set()
    stack = list(ys)
    while stack:
        value = stack.pop()
        if value in seen or not value.type.is_floating:
            continue
        seen.add(value)
        if value.node is not None and value.node.op != "stop_gradient":
            stack += value.node.inputs
    return seen


def _dtype(node: torch.fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def _reads_half_product(loss: torch.fx.Node) -> bool:
    """Whether the logits of a loss are a product in bfloat16, perhaps cast to float32."""
    node = loss.args[0]
    while isinstance(node, torch.fx.Node) and _VIEWS.match(str(node.target)):
        node = node.args[0]
    return isinstance(node, torch.fx.Node) and _dtype(node) == _HALF


def _require_plain(value: Any) -> None:
    """Refuses what the executor cannot read in place."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided:
            raise UnsupportedOpError(
                "graph: inputs must be dense tensors on the CPU. "
                f"Received: one on {value.device}, {value.layout}."
            )
        if value.dtype not in DTYPES:
            raise UnsupportedOpError(
                f"graph: inputs must be of {', '.join(DTYPES.values())}. Received: {value.dtype}."
            )
    elif not isinstance(value, (int, torch.SymInt)):
        raise UnsupportedOpError(
            f"graph: inputs must be tensors and sizes. Received: {type(value).__name__}."
        )
