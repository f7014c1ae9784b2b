"""Every name of PyTorch that is not public. Seen in torch 2.8 to 2.13."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves

from cerebras_tf.capture_torch.multi_head_attention import multi_head_attention_forward
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir.dimensions import Size

# sympy's classes of expressions of sizes.
_COMBINED: dict[str, Callable[[Any, Any], Size]] = {
    "Add": operator.add,
    "FloorDiv": operator.floordiv,
    "Mul": operator.mul,
}
# The node that runs a part of a model under torch.no_grad() or torch.enable_grad().
_GRAD_MODE = "wrap_with_set_grad_enabled"


def schema(op: Any) -> Any:
    """The schema of an aten op, None for a Python function."""
    return getattr(op, "_schema", None)


def size_of(size: Any, symbols: Mapping[str, Size]) -> Size:
    """A torch size as an IR size.

    Args:
        size: an int or a SymInt.
        symbols: the IR sizes of torch's symbols, by name.

    Raises:
        UnsupportedOpError: the size is no polynomial of sizes that differ from batch to batch.
    """
    return int(size) if isinstance(size, int) else _size(size.node.expr, symbols)


def symbol_of(size: Any) -> Optional[str]:
    """The name of the symbol that a torch size is; None for numbers and expressions."""
    if isinstance(size, int) or not size.node.expr.is_Symbol:
        return None
    return str(size.node.expr.name)


def _size(expression: Any, symbols: Mapping[str, Size]) -> Size:
    known = {s: symbols.get(s.name) for s in expression.free_symbols}
    if all(isinstance(size, int) for size in known.values()):
        return int(expression.subs(known))
    if expression.is_Symbol and symbols.get(expression.name) is not None:
        return symbols[expression.name]
    kind = type(expression).__name__
    if kind not in _COMBINED:
        raise UnsupportedOpError(
            "size: must be a polynomial of the sizes of the batch. "
            f"Received: {expression}. Give batches of one shape."
        )
    total, *others = (_size(item, symbols) for item in expression.args)
    for other in others:
        total = _COMBINED[kind](total, other)
    return total


@contextlib.contextmanager
def refused_while_exported() -> Iterator[None]:
    """Within: what export would trace without its gradient raises UnsupportedOpError.

    Multi-head attention keeps the batch as first axis.
    """

    def apply(function: Any, *args: Any, **keys: Any) -> None:
        raise UnsupportedOpError(
            "custom autograd function: its backward is not captured. "
            f"Received: {function.__module__}.{function.__qualname__}. Write the forward with "
            "torch operations; for checkpoints, set use_reentrant=False."
        )

    def register_hook(tensor: torch.Tensor, hook: Any) -> None:
        raise UnsupportedOpError(
            "tensor hook: must not change gradients. Received: "
            f"{getattr(hook, '__qualname__', hook)}. Remove it."
        )

    with (
        mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)),
        mock.patch.object(torch.Tensor, "register_hook", register_hook),
        mock.patch.object(
            torch.nn.functional, "multi_head_attention_forward", multi_head_attention_forward
        ),
    ):
        yield


def gradient_hooks(module: torch.nn.Module) -> list[str]:
    """Names of the modules and parameters whose hooks change gradients."""
    found = [
        name or type(item).__name__
        for name, item in module.named_modules()
        if item._backward_hooks or item._backward_pre_hooks
    ]
    hooked = ("_backward_hooks", "_post_accumulate_grad_hooks")
    found += [
        name
        for name, item in module.named_parameters()
        if any(getattr(item, kind, None) for kind in hooked)
    ]
    return found


def detach_no_grad(program: torch.export.ExportedProgram) -> None:
    """Adds a `detach` after every result of a torch.no_grad() region.

    `run_decompositions` inlines these regions, after which nothing else says that no gradient
    passes through them.
    """
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or _GRAD_MODE not in str(node.target):
            continue
        enabled, region = node.args[0], getattr(program.graph_module, node.args[1].target)
        inner = [n for n in region.graph.nodes if _GRAD_MODE in str(n.target)]
        if any(n.args[0] != enabled for n in inner):
            raise UnsupportedOpError(
                "torch.no_grad: regions must not contain torch.enable_grad. "
                f"Received: {_line(inner[0])}. Move the inner region out."
            )
        for item in [] if enabled else [user for user in node.users if _is_floating(user)]:
            with graph.inserting_after(item):
                stop = graph.call_function(torch.ops.aten.detach.default, (item,))
            stop.meta = dict(item.meta)
            for user in [user for user in item.users if user is not stop]:
                user.replace_input_with(item, stop)
    program.graph_module.recompile()


def _is_floating(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _line(node: torch.fx.Node) -> str:
    return str(node.meta.get("stack_trace") or node.name).strip().splitlines()[-1].strip()


def leaves(nested: Any) -> list[Any]:
    """The items of nested lists and tuples."""
    return list(tree_leaves(nested))


@contextlib.contextmanager
def replaced_parameters(
    module: torch.nn.Module, tensors: Mapping[torch.Tensor, torch.Tensor]
) -> Iterator[None]:
    """Within: the module's parameters are other tensors, by the tensor they replace."""
    old = [
        (item, name, parameter)
        for item in module.modules()
        for name, parameter in item._parameters.items()
        if parameter is not None and parameter in tensors
    ]
    try:
        for item, name, parameter in old:
            item._parameters[name] = tensors[parameter]
        yield
    finally:
        for item, name, parameter in old:
            item._parameters[name] = parameter


def trace(function: Callable[..., Any], args: Sequence[Any]) -> torch.fx.GraphModule:
    """The aten graph of a function, without in-place ops.

    Args:
        args: (nested) lists of tensors; only dtypes and shapes are read.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    def fake(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [fake(x) for x in item]
        return mode.from_tensor(item.detach(), static_shapes=True)

    plain = mock.patch.object(torch.nn.utils.clip_grad, "_has_foreach_support", lambda *args: False)
    with plain:
        return make_fx(torch.func.functionalize(function), tracing_mode="fake")(*fake(args))
