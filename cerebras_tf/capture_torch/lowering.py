"""Lowers an FX graph of aten ops to IR, op by op."""

from __future__ import annotations

import hashlib
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import numpy as np
import torch

from cerebras_tf.capture_torch import internals
from cerebras_tf.capture_torch.registry import RULES, arguments
from cerebras_tf.errors import SizeLimitError, UnsupportedOpError
from cerebras_tf.ir import Dim, Size, StepGraph, TensorType, Value
from cerebras_tf.ir.program import COMMON_RANDOM_STEP, RANDOM_STEP
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder
from cerebras_tf.ops.sizes import counts

DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
_TORCH_TYPES = {name: dtype for dtype, name in DTYPES.items()}
# Arithmetic of Python numbers that are read from tensors, as in the step of an optimizer.
_PYTHON = {
    "add": "add",
    "mul": "mul",
    "neg": "neg",
    "pow": "pow",
    "sqrt": "sqrt",
    "sub": "sub",
    "sym_float": "identity",
    "sym_max": "maximum",
    "sym_min": "minimum",
    "truediv": "div",
}
# Calls that compute nothing.
_SKIPPED = re.compile(r"assert|profiler\.|_set_grad_enabled|sym_constrain", re.IGNORECASE)
# How many ops without a rule an error names.
_NAMED = 8


class Lowering:
    """What rules use.

    Args:
        step: nodes are added to its graph.
        seed: of the random ops.
        symbols: the IR sizes of torch's symbols, by name.

    Attributes:
        differentiates: whether gradients are taken of what is lowered.
        trains: whether the step is a part of training.
        b: builder of the IR graph.
        values: what nodes of the FX graph became: Values, tuples of them, sizes or None.
        node: the node that is being lowered.
    """

    node: torch.fx.Node
    differentiates = True
    trains = False

    def __init__(self, step: StepGraph, seed: int, symbols: Mapping[str, Size]) -> None:
        self.step, self.symbols = step, symbols
        self.b = Builder(step.graph, evaluate)
        self.values: dict[torch.fx.Node, Any] = {}
        self._seed = seed

    # What the node returns, by torch's own inference.

    @property
    def dtype(self) -> str:
        """dtype of the node's (first) result."""
        return DTYPES[self._result().dtype]

    @property
    def shape(self) -> tuple[Size, ...]:
        """Shape of the node's (first) result."""
        return self.sizes(self._result().shape)

    @property
    def shapes(self) -> list[tuple[Size, ...]]:
        """Shapes of all results of the node."""
        return [self.sizes(item.shape) for item in self.node.meta["val"]]

    def _result(self) -> Any:
        value = self.node.meta["val"]
        return value[0] if isinstance(value, (list, tuple)) else value

    def sizes(self, sizes: Iterable[Any]) -> tuple[Size, ...]:
        """torch sizes as IR sizes."""
        return tuple(internals.size_of(size, self.symbols) for size in sizes)

    # Operands.

    def value(self, x: Any, dtype: Optional[str] = None) -> Value:
        """A tensor or a Python number as a value of a dtype; by default of the node's result."""
        wanted = dtype or self.dtype
        if not isinstance(x, Value):
            return counts(self.b, x, wanted) if isinstance(x, Dim) else self.b.constant(x, wanted)
        return x if x.dtype == wanted else self.b.op("cast", x, dtype=wanted)

    def common_dtype(self, *operands: Any) -> str:
        """The dtype in which torch computes with these tensors and Python numbers."""

        def example(x: Any) -> Any:
            if not isinstance(x, Value):
                return 1 if isinstance(x, Dim) else x
            shape = (1,) if x.type.rank else ()
            return torch.empty(shape, dtype=_TORCH_TYPES[x.dtype], device="meta")

        first, *others = operands
        found = example(first)
        for other in others:
            dtype = torch.result_type(found, example(other))
            rank = max(x.type.rank for x in operands if isinstance(x, Value))
            found = torch.empty((1,) if rank else (), dtype=dtype, device="meta")
        return DTYPES[found.dtype]

    def draw(self) -> tuple[Value, Value]:
        """The step and the seeds of the node's random numbers, for ops that draw."""
        digest = hashlib.blake2b(self.node.name.encode(), digest_size=8).digest()
        own = int.from_bytes(digest, "little") >> 1
        seeds = self.b.constant(np.array([self._seed, own], np.int64))
        return self._random_step(RANDOM_STEP), seeds

    def rounded(self, value: Value, name: str) -> Value:
        """A new value of a variable in bfloat16, rounded stochastically.

        The result depends only on the variable's name, the step and the element's index; see
        capture.capture.
        """
        digest = hashlib.blake2b(f"{name} at rest".encode(), digest_size=16).digest()
        seeds = self.b.constant(np.frombuffer(digest, "<i8").astype(np.int64))
        step, limits = self._random_step(COMMON_RANDOM_STEP), {"low": 0, "high": 2**63 - 1}
        key = self.b.op("random_uniform_int", step, seeds, shape=(), dtype="int64", **limits)
        return self.b.op("round_randomly", value, key)

    def _random_step(self, name: str) -> Value:
        """The feature that counts earlier draws."""
        if name not in self.step.features:
            kind = TensorType("int64", ())
            self.step.features[name] = self.step.graph.add_input(name, kind)
        return self.step.features[name]

    def is_trained(self, value: Value) -> bool:
        """Whether a gradient may be taken of a value: it depends on floating inputs."""
        seen: set[Value] = set()
        stack = [value]
        while stack:
            found = stack.pop()
            if found in seen or not found.type.is_floating:
                continue
            seen.add(found)
            if found.node is None:
                return True
            if found.node.op != "stop_gradient":
                stack += found.node.inputs
        return False

    # The graph.

    def operand(self, x: Any) -> Any:
        """What an argument of a node stands for: values and sizes in place of nodes."""
        if isinstance(x, torch.fx.Node):
            if x not in self.values and not isinstance(x.meta.get("val"), torch.Tensor):
                return internals.size_of(x.meta["val"], self.symbols)
            return self.values[x]
        if isinstance(x, (list, tuple)):
            return tuple(self.operand(item) for item in x)
        if isinstance(x, torch.SymInt):
            return internals.size_of(x, self.symbols)
        return x

    def run(self, module: torch.fx.GraphModule) -> tuple[Any, ...]:
        """Lowers a graph whose placeholders have values, and returns its outputs, flat.

        Raises:
            UnsupportedOpError: ops have no rule; the message lists them with their lines.
        """
        require_rules(module.graph)
        for node in module.graph.nodes:
            if node.op == "get_attr":
                tensor = operator.attrgetter(node.target)(module)
                if isinstance(tensor, torch.Tensor):
                    self.values[node] = self.b.constant(array_of(tensor), DTYPES[tensor.dtype])
            elif node.op == "call_function" and not _computes_nothing(node):
                self._lower(node)
            elif node.op == "output":
                return tuple(map(self.operand, internals.leaves(node.args[0])))
        return ()

    def _lower(self, node: torch.fx.Node) -> None:
        self.node = node
        self.b.source = source_of(node)
        try:
            self.values[node] = self._result_of(node)
        except (SizeLimitError, UnsupportedOpError) as error:
            raise type(error)(f"{error} At {location(node)}.") from error
        except Exception as error:
            raise UnsupportedOpError(f"{node.target}: {error} At {location(node)}.") from error

    def _result_of(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            return self.operand(node.args[0])[node.args[1]]
        if _is_size(node):
            return internals.size_of(node.meta["val"], self.symbols)
        if internals.schema(node.target) is None:
            python = _PYTHON[_python_name(node)]
            operands = [self.value(self.operand(x), "float64") for x in node.args]
            return self.b.op(python, *operands)
        if str(node.target) not in RULES:
            tensor = node.target(*node.args, **node.kwargs)
            return self.b.constant(array_of(tensor), DTYPES[tensor.dtype])
        rule = RULES[str(node.target)]
        found = {key: self.operand(x) for key, x in arguments(rule, node).items()}
        return rule(self, **found)


def _computes_nothing(node: torch.fx.Node) -> bool:
    """Whether a node only checks something, such as sizes."""
    is_condition = isinstance(node.meta.get("val"), (bool, torch.SymBool))
    return is_condition or bool(_SKIPPED.search(str(node.target)))


def _is_size(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (int, torch.SymInt))


def _is_fixed(node: torch.fx.Node) -> bool:
    """Whether a node has the same result in every step, as torch.linspace of numbers."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.all_input_nodes:
        return False
    is_op, sizes = internals.schema(node.target) is not None, value.shape
    return is_op and all(isinstance(n, int) for n in sizes) and not internals.is_random(node.target)


def _python_name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).removeprefix("_sym_")


def array_of(tensor: torch.Tensor) -> Any:
    """A tensor as an array; of bfloat16 the bits, as the IR stores them."""
    plain = tensor.detach().cpu().contiguous()
    return (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()


def require_rules(graph: torch.fx.Graph) -> None:
    """Raises UnsupportedOpError if ops have no rule; names all of them with their lines."""
    missing: dict[str, torch.fx.Node] = {}
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        if node.op == "call_function" and not _has_rule(node):
            missing.setdefault(str(node.target), node)
            counts[str(node.target)] += 1
    if missing:
        found = [f"{name} ({counts[name]}x, {location(n)})" for name, n in missing.items()]
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise UnsupportedOpError(
            "model: PyTorch operations must be supported ones. Received: "
            f"{'; '.join(found[:_NAMED])}{more}. Replace them.",
            code="pytorch-operations",
        )


def _has_rule(node: torch.fx.Node) -> bool:
    name = str(node.target)
    if name in RULES or _is_size(node) or node.target is operator.getitem:
        return True
    if _computes_nothing(node) or _is_fixed(node):
        return True
    return internals.schema(node.target) is None and _python_name(node) in _PYTHON


def source_of(node: torch.fx.Node) -> str:
    """The name of an IR node: the path of the module and the name of the FX node."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]).replace(".", "/") if stack else ""
    return f"{path}/{node.name}" if path else str(node.name)


def location(node: torch.fx.Node) -> str:
    """The module and the innermost line of the user's model that built a node."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    kind = stack[-1][1] if stack else ""
    path = str(stack[-1][0]).removeprefix("model").lstrip(".") if stack else ""
    kind = getattr(kind, "__name__", str(kind).rpartition(".")[2])
    module = f"'{path}' ({kind})" if path else kind
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [line for line in lines if not line[0].startswith(internals.OUTSIDE)]
    where = [f"{file.rpartition('/')[2]}:{number}" for file, number in own[-1:]]
    return ", ".join([*([module] if module else []), *where]) or str(node.name)
