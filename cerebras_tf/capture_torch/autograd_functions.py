"""Custom autograd functions: their forward and their own backward, as a part of the graph.

Where a model calls `Function.apply`, forward and backward are traced, the latter on cotangents that
are new values:

    y = forward(x)  dy = cotangent(y)  dx = backward(dy)  y = custom_gradient([y], [x], [dy], [dx])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cerebras_tf.capture_torch import internals
from cerebras_tf.capture_torch.lowering import Lowering
from cerebras_tf.capture_torch.registry import lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, Value
from cerebras_tf.ops import Builder

_CUSTOM_GRADIENT = "cerebras_tf::custom_gradient"
_COTANGENT = "cerebras_tf::cotangent"


@torch.library.custom_op(  # type: ignore[untyped-decorator]
    _COTANGENT, mutates_args=(), schema="(Tensor output, int number) -> Tensor"
)
def _cotangent(output: torch.Tensor, number: int) -> torch.Tensor:
    """The gradient of the loss with respect to an output, which is known later."""
    return torch.zeros_like(output)


@torch.library.custom_op(  # type: ignore[untyped-decorator]
    _CUSTOM_GRADIENT,
    mutates_args=(),
    schema="(Tensor[] outputs, Tensor[] inputs, Tensor[] seeds, Tensor[] gradients) -> Tensor[]",
)
def _custom_gradient(
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    seeds: list[torch.Tensor],
    gradients: list[torch.Tensor],
) -> list[torch.Tensor]:
    """The outputs. Their seeds give the gradients of the inputs."""
    return [output.clone() for output in outputs]


_cotangent.register_fake(lambda output, number: torch.empty_like(output))
_custom_gradient.register_fake(
    lambda outputs, inputs, seeds, gradients: [torch.empty_like(output) for output in outputs]
)


class _Context(torch.autograd.function.FunctionCtx):  # type: ignore[misc]
    """What forward and backward share."""

    to_save: Sequence[Any] = ()
    dirty_tensors: Sequence[Any] = ()
    non_differentiable: Sequence[Any] = ()
    materialize_grads = True

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(map(_is_floating, args))

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self.to_save)


def trace_function(function: Any, forward: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Traces a call of a custom autograd function; returns its outputs.

    Args:
        function: the subclass of torch.autograd.Function.
        forward: its forward.

    Raises:
        UnsupportedOpError: its backward cannot be captured.
    """
    with torch.no_grad():
        context, found = run_forward(function, forward, args)
        outputs = list(found) if isinstance(found, tuple) else [found]
        hidden = {id(tensor) for tensor in context.non_differentiable}
        places = [i for i, y in enumerate(outputs) if _is_floating(y) and id(y) not in hidden]
        _check(function, context, len(places))
        outputs = [y.detach() if _is_floating(y) else y for y in outputs]
        seeds = {i: torch.ops.cerebras_tf.cotangent(outputs[i], i) for i in places}
        inputs, gradients = _gradients(function, context, args, outputs, seeds)
    if gradients:
        known = torch.ops.cerebras_tf.custom_gradient(
            [outputs[i] for i in places], inputs, list(seeds.values()), gradients
        )
        for i, output in zip(places, known):
            outputs[i] = output
    return tuple(outputs) if isinstance(found, tuple) else outputs[0]


def run_forward(
    function: Any, forward: Callable[..., Any], args: Sequence[Any]
) -> tuple[_Context, Any]:
    """The context of a call and what forward returns."""
    context, setup = _Context(args), internals.setup_context(function)
    with torch.no_grad():
        if setup is None:
            return context, forward(context, *args)
        found = forward(*args)
        setup(context, tuple(args), found)
    return context, found


def differentiated(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """The operands of a node that a gradient may pass to."""
    name = str(node.target).replace(".", "::", 1)
    return list(node.args[1] if name.startswith(_CUSTOM_GRADIENT) else node.all_input_nodes)


def _check(function: Any, context: _Context, count: int) -> None:
    reason = None
    if context.dirty_tensors:
        reason = "mark_dirty"
    elif not context.materialize_grads and count > 1:
        reason = "set_materialize_grads(False) with several outputs"
    if reason is not None:
        raise UnsupportedOpError(
            f"custom autograd function {function.__qualname__}: must return new tensors, and "
            f"accept zeros as gradients. Received: {reason}. Remove it."
        )


def _gradients(
    function: Any,
    context: _Context,
    args: Sequence[Any],
    outputs: Sequence[Any],
    seeds: dict[int, torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The inputs that backward gives a gradient of, and these gradients."""
    given = [
        seeds[i]
        if i in seeds
        else torch.zeros_like(y)
        if isinstance(y, torch.Tensor) and context.materialize_grads
        else None
        for i, y in enumerate(outputs)
    ]
    name = f"custom autograd function {function.__qualname__}: its backward must be traceable"
    with internals.tracing_errors(name, "Write it with torch operations."):
        found = internals.call_backward(function, context, given)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    others = [item for item in results[len(args) :] if item is not None]
    pairs = [(x, item) for x, item in zip(args, results) if item is not None]
    if len(results) < len(args) or others or not all(_is_floating(x) for x, _ in pairs):
        raise UnsupportedOpError(
            f"custom autograd function {function.__qualname__}: backward must return a gradient, "
            f"or None, for every argument. Received: {len(results)} for {len(args)} arguments. "
            "Return None for arguments that are not floating point tensors."
        )
    return [x for x, _ in pairs], [_fitted(x, gradient) for x, gradient in pairs]


def _fitted(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A gradient in the shape and dtype of its input, as torch converts it."""
    if gradient.shape != x.shape:
        gradient = gradient.sum_to_size(x.shape)
    return gradient.to(x.dtype)


def _is_floating(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.is_floating_point()


@lowers(_COTANGENT)
def _lower_cotangent(low: Lowering, output: Value, number: int) -> Value:
    return low.step.graph.add_input(low.node.name, output.type)


@lowers(_CUSTOM_GRADIENT)
def _lower_custom_gradient(
    low: Lowering,
    outputs: Sequence[Value],
    inputs: Sequence[Value],
    seeds: Sequence[Value],
    gradients: Sequence[Value],
) -> list[Value]:
    """The outputs, whose gradients give those of the inputs; see ops/control.py."""
    backward = Graph(f"{low.node.name}_backward")
    captured = _extract(low, backward, [_attached(seed) for seed in seeds], gradients)
    for i, x in enumerate(inputs):  # cotangents of the inputs, which nothing reads after the node
        backward.add_input(f"d_{i}", x.type)
    xs = [*(low.b.op("stop_gradient", y) for y in outputs), *inputs]
    gives = tuple(range(len(outputs), len(xs)))
    found = low.b.multi(
        "custom_gradient", *xs, *captured, xs=len(xs), backward=backward, gives=gives
    )
    return found[: len(outputs)]


def _attached(value: Value) -> Value:
    """The value before it was detached."""
    while value.node is not None and value.node.op == "stop_gradient":
        value = value.node.inputs[0]
    return value


def _extract(
    low: Lowering, inner: Graph, seeds: Sequence[Value], results: Sequence[Value]
) -> list[Value]:
    """Copies the nodes between seeds and results to a graph.

    Its inputs are the values that these nodes read besides, and then the seeds.

    Returns:
        The values that are read.
    """
    depends, nodes = set(seeds), []
    for node in low.step.graph.nodes:
        if any(value in depends for value in node.inputs):
            depends.update(node.outputs)
            nodes.append(node)
    needed, copied = set(results), []
    for node in reversed(nodes):
        if any(value in needed for value in node.outputs):
            needed.update(node.inputs)
            copied.append(node)
    captured = [v for v in dict.fromkeys(_read(copied[::-1], results)) if v not in depends]
    mapping = {v: inner.add_input(f"captured_{i}", v.type) for i, v in enumerate(captured)}
    mapping |= {v: inner.add_input(f"seed_{i}", v.type) for i, v in enumerate(seeds)}
    b = Builder(inner, low.b.evaluate)
    for node in copied[::-1]:
        b.source = node.source
        made = b.multi(node.op, *(mapping[value] for value in node.inputs), **node.attrs)
        mapping.update(zip(node.outputs, made))
    inner.outputs = [mapping[value] for value in results]
    return captured


def _read(nodes: Sequence[Any], results: Sequence[Value]) -> list[Value]:
    return [value for node in nodes for value in node.inputs] + list(results)
