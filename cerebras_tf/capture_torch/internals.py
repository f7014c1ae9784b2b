"""Every name of PyTorch that is not public. Seen in torch 2.8 to 2.14."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional
from unittest import mock

import torch
from torch._decomp import decomposition_table, get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import register_backend as register_backend
from torch._functorch.aot_autograd import aot_export_module
from torch._guards import TracingContext, tracing
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.function import BackwardCFunction
from torch.export import exported_program
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.nn.modules import module as modules
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from cerebras_tf.capture_torch.decompositions import DECOMPOSITIONS, KEPT, OF_PYTORCH
from cerebras_tf.capture_torch.multi_head_attention import multi_head_attention_forward
from cerebras_tf.errors import CerebrasError, UnsupportedOpError
from cerebras_tf.ir.dimensions import Size

# The error of a Python branch that depends on data, in a traced function.
DATA_DEPENDENT = GuardOnDataDependentSymNode
# sympy's classes of expressions of sizes.
_COMBINED: dict[str, Callable[[Any, Any], Size]] = {
    "Add": operator.add,
    "FloorDiv": operator.floordiv,
    "Mul": operator.mul,
}
# The node that runs a part of a model under torch.no_grad() or torch.enable_grad().
_GRAD_MODE = "wrap_with_set_grad_enabled"
# The autograd function by which torch.utils.checkpoint saves inputs; its result is not used.
_SAVED_INPUTS = "_NoopSaveInputs"
# Names of nodes of Dynamo's graphs.
_CHECKPOINT, _AUTOGRAD_FUNCTION = "tag_activation_checkpoint", "autograd_function_apply"
_SET_GRAD_ENABLED = "_set_grad_enabled"
# Of an op that consists of others, also for its gradient.
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


# Starts of paths of files that are not the user's.
OUTSIDE = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)), "<")


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


def size_value(size: Any, values: Mapping[str, Any]) -> int:
    """The number of a torch size, given those of its symbols by name."""
    if isinstance(size, int):
        return size
    expr = size.node.expr
    return int(expr.subs({symbol: values[symbol.name] for symbol in expr.free_symbols}))


def size_conditions(program: torch.export.ExportedProgram) -> list[str]:
    """Conditions on sizes that tracing assumed: Python expressions of the inputs, by the name L.

    They come from branches of the model that depend on sizes. Releases without them return none.
    """
    return list(getattr(program, "_guards_code", None) or ())


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
def tracing_errors(what: str, fix: str) -> Iterator[None]:
    """Within: other errors than the project's become UnsupportedOpError.

    Args:
        what: is traced, with what must hold.
        fix: what to do.
    """
    try:
        yield
    except CerebrasError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UnsupportedOpError(
            f"{what}. Received: {type(error).__name__}: {reason}{_own_line(error)}. {fix}".rstrip()
        ) from error


def _own_line(error: Exception) -> str:
    """The innermost line of the user's code in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(OUTSIDE) and not frame.filename.endswith("contextlib.py")
    ]
    return f", at {own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}" if own else ""


# Traces a call of a custom autograd function, given the class, its forward and the arguments.
FunctionTracer = Callable[[Any, Callable[..., Any], Sequence[Any]], Any]


@contextlib.contextmanager
def export_overrides(tracer: FunctionTracer) -> Iterator[None]:
    """Within: custom autograd functions are traced; gradients that export would lose are refused.

    Multi-head attention keeps the batch as first axis.
    """

    def register_hook(tensor: torch.Tensor, hook: Any) -> None:
        raise UnsupportedOpError(
            "tensor hook: must not change gradients. Received: "
            f"{getattr(hook, '__qualname__', hook)}. Remove it."
        )

    def run_backward(*args: Any, **keys: Any) -> None:
        raise UnsupportedOpError(
            "model: must not compute gradients. Received: torch.autograd.grad or backward. Write "
            "the gradient with torch operations."
        )

    def scale(scaler: Any, outputs: Any) -> Any:
        if scaler.is_enabled():
            raise UnsupportedOpError(
                "loss: must not be scaled. Received: GradScaler.scale. Return the plain loss. It "
                "is scaled if update calls the scaler."
            )
        return outputs

    with (
        autograd_functions(tracer),
        mock.patch.object(torch.Tensor, "register_hook", register_hook),
        mock.patch.object(torch.autograd, "_engine_run_backward", run_backward),
        mock.patch.object(torch.amp.GradScaler, "scale", scale),
        # whose order of products would depend on the sizes
        mock.patch.object(torch.backends.opt_einsum, "enabled", False),
        mock.patch.object(
            torch.nn.functional, "multi_head_attention_forward", multi_head_attention_forward
        ),
    ):
        yield


@contextlib.contextmanager
def autograd_functions(tracer: FunctionTracer) -> Iterator[None]:
    """Within: where gradients are enabled, a tracer computes what autograd functions return.

    PyTorch makes a context object in every call of `apply`, however that was looked up, and then
    looks up `forward`.
    """
    patched: set[Any] = set()
    enabled: list[bool] = []
    with contextlib.ExitStack() as stack:

        def begin(context: Any, *args: Any) -> None:
            function = type(context)._forward_cls
            enabled.append(torch.is_grad_enabled())
            if function not in patched:
                patched.add(function)
                found = _traced_forward(function, tracer, enabled)
                stack.enter_context(mock.patch.object(function, "forward", staticmethod(found)))

        stack.enter_context(mock.patch.object(BackwardCFunction, "__init__", begin))
        yield


def _traced_forward(
    function: Any, tracer: FunctionTracer, enabled: list[bool]
) -> Callable[..., Any]:
    plain = function.forward

    def forward(*args: Any) -> Any:
        module = str(function.__module__)
        is_op = module.startswith("torch._library.")  # a registered op, which is one node
        if not enabled.pop() or is_op or function.__name__ == _SAVED_INPUTS:
            return plain(*args)
        if module.startswith("torch."):
            raise UnsupportedOpError(
                "autograd function: must be a custom one. Received: "
                f"{function.__module__}.{function.__qualname__}. For checkpoints, set "
                "use_reentrant=False."
            )
        # As it was before the call, without a node in the graph.
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(True)
        return tracer(function, plain, args if setup_context(function) else args[1:])

    return forward


def setup_context(function: Any) -> Optional[Callable[..., Any]]:
    """The `setup_context` of a custom autograd function, None if its forward has the context."""
    found: Callable[..., Any] = function.setup_context
    return None if found is torch.autograd.Function.setup_context else found


def call_backward(function: Any, context: Any, gradients: Sequence[Any]) -> Any:
    """What the backward of a custom autograd function returns."""
    vjp = function.vjp
    backward = function.backward if vjp is torch.autograd.Function.vjp else vjp
    if getattr(function, "boxed_grads_call", False):
        return backward(context, list(gradients))
    return backward(context, *gradients)


def gradient_hooks(module: torch.nn.Module) -> list[str]:
    """Names of the modules and parameters whose hooks change gradients."""
    found = [
        name or type(item).__name__
        for name, item in module.named_modules()
        if item._backward_hooks or item._backward_pre_hooks
    ]
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        found.append("all modules")
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
    """The line of code that built a node."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    return next((line for line in reversed(lines) if line.strip("^~ ")), node.name)


@functools.cache
def decompositions(rules: frozenset[str]) -> dict[Any, Callable[..., Any]]:
    """What ops without a rule become; see `decompositions.py`.

    Args:
        rules: names of the ops that have a rule.
    """
    table = dict(torch.export.default_decompositions().items())
    found = {
        op: function
        for op, function in table.items()
        if str(op) not in rules | KEPT and op.has_kernel_for_dispatch_key(_COMPOSITE)
    }
    for name in OF_PYTORCH | set(DECOMPOSITIONS):
        op = operator.attrgetter(name)(torch.ops)
        own = DECOMPOSITIONS.get(name) or table.get(op)
        found[op] = own or get_decompositions([op])[op]
    return found


def is_random(op: Any) -> bool:
    """Whether an op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags


@contextlib.contextmanager
def true_reductions() -> Iterator[None]:
    """Within: composite losses have the shape that their reduction gives.

    PyTorch's own inference of their shape for symbolic sizes takes reduction="none" for "mean".
    """
    with mock.patch.dict(decomposition_table):
        for op in list(decomposition_table):
            composite = isinstance(op, OpOverload) and op.has_kernel_for_dispatch_key(_COMPOSITE)
            if composite and any(item.name == "reduction" for item in schema(op).arguments):
                del decomposition_table[op]
        yield


def leaves(nested: Any) -> list[Any]:
    """The items of nested lists and tuples."""
    return list(tree_leaves(nested))


# Raised where a value of a tensor without data is read, or a shape depends on values.
NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def fake_mode() -> Any:
    """A context in which operations infer types and compute nothing."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_of(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without data, of the type of another."""
    fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return fake


def flattened(nested: Any) -> tuple[list[Any], Any]:
    """The items of nested lists, tuples and dictionaries, and the structure."""
    items, structure = tree_flatten(nested)
    return list(items), structure


def nested(items: Iterable[Any], structure: Any) -> Any:
    """What `flattened` flattened."""
    return tree_unflatten(list(items), structure)


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


@contextlib.contextmanager
def fake_parameters(module: torch.nn.Module) -> Iterator[None]:
    """Within: parameters on the meta device are on the CPU, still without data."""
    empty = [p for p in module.parameters() if p.is_meta]
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
        fake = {
            p: torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype), p.requires_grad)
            for p in empty
        }
    with replaced_parameters(module, fake):
        yield


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

    clipping, adafactor = torch.nn.utils.clip_grad, torch.optim._adafactor

    def numpy(tensor: torch.Tensor, **settings: Any) -> Any:
        raise RuntimeError("numpy(): tensors have no values here")

    with (
        mock.patch.object(torch.Tensor, "numpy", numpy),
        mock.patch.object(clipping, "_has_foreach_support", lambda *args, **keys: False),
        # functionalize has no form of square_
        mock.patch.object(torch.Tensor, "square_", lambda tensor: tensor.mul_(tensor)),
        mock.patch.object(adafactor, "min", _of_numbers(torch.sym_min), create=True),
        mock.patch.object(adafactor, "max", _of_numbers(torch.sym_max), create=True),
    ):
        return make_fx(torch.func.functionalize(function), tracing_mode="fake")(*fake(args))


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers that are known only later, as one of these and of scalar tensors."""
    return lambda *args: function(*(x.item() if isinstance(x, torch.Tensor) else x for x in args))


# Graphs of Dynamo: modules of FX whose placeholders have an example value.


@dataclass(frozen=True)
class TracedFunction:
    """A function as an aten graph without in-place ops. Composite ops are not decomposed.

    Attributes:
        module: its placeholders are constants, and then the function's arguments. Its outputs are
            the new values of arguments that the function changes, and then what it returns.
        constants: the values of the first placeholders.
        changed: positions of the arguments that the function changes, in the order of the outputs.
    """

    module: torch.fx.GraphModule
    constants: list[torch.Tensor]
    changed: list[int]


def example_values(module: torch.fx.GraphModule) -> list[Any]:
    """The arguments that Dynamo traced a graph with: tensors without data, and symbolic sizes."""
    return [node.meta["example_value"] for node in _places(module)]


def _places(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _mode(examples: Sequence[Any]) -> FakeTensorMode:
    """The mode of tensors without data; a new one if there are none."""
    found = (x.fake_mode for x in examples if isinstance(x, torch.Tensor))
    return next(found, None) or FakeTensorMode(shape_env=ShapeEnv())


def propagate(module: torch.fx.GraphModule) -> tuple[list[Any], list[Any]]:
    """Runs a graph of Dynamo on tensors without data, with gradients enabled.

    Returns:
        The arguments after the call, and the outputs.
    """
    examples = example_values(module)
    with _mode(examples), enable_python_dispatcher(), torch.enable_grad():
        args = [
            x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
            for x in examples
        ]
        return args, leaves(module(*args))


def storage_of(tensor: torch.Tensor) -> int:
    """A number that two tensors share if they share memory."""
    return int(tensor.untyped_storage()._cdata)


def python_floats(module: torch.fx.GraphModule) -> list[int]:
    """Positions of arguments that are Python floats, which Dynamo passes as tensors."""
    return [
        at
        for at, node in enumerate(_places(module))
        if node.users and all(user.target == "item" for user in node.users)
    ]


def with_floats(module: torch.fx.GraphModule, values: Mapping[int, float]) -> torch.fx.GraphModule:
    """A copy of a graph of Dynamo with numbers in place of arguments that are Python floats."""
    module = copy.deepcopy(module)
    places = _places(module)
    for position, value in values.items():
        for item in list(places[position].users):
            for user in list(item.users):
                user.args, user.kwargs = torch.fx.map_arg(
                    (user.args, user.kwargs), lambda n, item=item, v=value: v if n is item else n
                )
            module.graph.erase_node(item)
    module.recompile()
    return module


def trace_functional(module: torch.fx.GraphModule, rules: frozenset[str]) -> TracedFunction:
    """Traces a graph of Dynamo, with the symbolic sizes that Dynamo gave its arguments.

    Args:
        rules: as for `decompositions`.

    Raises:
        UnsupportedOpError: it changes gradients in a way that is not captured.
    """
    examples = example_values(module)
    mode = _mode(examples)
    composite, others = exported_program._split_decomp_table_to_cia_and_python_decomp(
        dict(decompositions(rules))
    )
    with (
        mode,
        true_reductions(),
        exported_program._override_composite_implicit_decomp(composite),
        tracing(TracingContext(mode)),
    ):
        graph, signature = aot_export_module(
            _without_regions(module),
            [x.detach() if isinstance(x, torch.Tensor) else x for x in examples],
            trace_joint=False,
            decompositions=others,
        )
    positions = {name: at for at, name in enumerate(signature.user_inputs)}
    outputs = [str(node) for node in leaves(graph.graph.output_node().args[0])]
    changed = [
        positions[signature.user_inputs_to_mutate[name]]
        for name in outputs[: len(outputs) - len(signature.user_outputs)]
    ]
    buffers = dict(module.named_buffers())
    constants = [buffers[name] for name in signature.inputs_to_buffers.values()]
    return TracedFunction(graph, constants, changed)


def _without_regions(module: torch.fx.GraphModule, enabled: bool = True) -> torch.fx.GraphModule:
    """A copy without checkpoints, and with `detach` after the ops of torch.no_grad() regions."""
    module = copy.deepcopy(module)
    graph = module.graph
    parts: set[torch.fx.Node] = set()  # items of what such ops return
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        name = str(getattr(node.target, "__name__", node.target))
        if _AUTOGRAD_FUNCTION in name:
            raise UnsupportedOpError(
                "custom autograd function: its backward is not captured. "
                f"Received: {_line(node)}. Write the forward with PyTorch operations."
            )
        if name == _SET_GRAD_ENABLED:
            enabled = bool(node.args[0])
            graph.erase_node(node)
        elif _CHECKPOINT in name:
            body = getattr(module, node.args[0].target)
            setattr(module, node.args[0].target, _without_regions(body, enabled))
            with graph.inserting_before(node):
                call = graph.call_module(node.args[0].target, node.args[1:])
            node.replace_all_uses_with(call)
            graph.erase_node(node)
        elif not enabled or node in parts:
            _refuse_in_place(node, name)
            value = node.meta.get("example_value")
            if isinstance(value, (tuple, list)):
                parts.update(node.users)
            elif isinstance(value, torch.Tensor) and value.is_floating_point():
                with graph.inserting_after(node):
                    stop = graph.call_method("detach", (node,))
                node.replace_all_uses_with(stop, lambda user, stop=stop: user is not stop)
    module.recompile()
    return module


def _refuse_in_place(node: torch.fx.Node, name: str) -> None:
    """Refuses an in-place op of a torch.no_grad() region on a value that has a gradient."""
    target = node.args[0] if node.args else None
    value = target.meta.get("example_value") if isinstance(target, torch.fx.Node) else None
    in_place = name == "setitem" or (name.endswith("_") and not name.endswith("__"))
    if in_place and isinstance(value, torch.Tensor) and value.requires_grad:
        raise UnsupportedOpError(
            "torch.no_grad: regions must not change tensors that have a gradient in place. "
            f"Received: {_line(node)}. Copy the tensor first."
        )
