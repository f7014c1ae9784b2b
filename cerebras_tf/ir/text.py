"""The text form of graphs and of steps, and its inverse.

The text of a step first lists the meaning of its graph's inputs and outputs, then the graph.
Constants of more than 16 elements are printed by digest; parsing them back needs the table that
`collect_constants` returns. Parsing checks syntax only; `verify` checks the graph.
"""

from __future__ import annotations

import ast
import hashlib
import re
from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import GraphError
from cerebras_tf.ir.dimensions import parse_dim, parse_literal
from cerebras_tf.ir.graph import Graph, Node, Value
from cerebras_tf.ir.step import RESULT, UPDATE, Draw, StepGraph, Variable
from cerebras_tf.ir.types import Array, parse_type

_INLINE_ELEMENTS = 16
_HEADER = re.compile(r"graph @(?P<name>[^\s(]+)\((?P<inputs>.*)\) \{$")
_LINE = re.compile(
    r"(?P<outputs>%.*?) = (?P<op>\w+)\((?P<inputs>[^)]*)\)"
    r"(?: \{(?P<attrs>.*)\})?(?: @(?P<layer>-?\d+)\.(?P<direction>\w+))?(?: # (?P<src>.*))?$"
)
Constants = dict[str, Array]


def print_graph(graph: Graph) -> str:
    """Text of a graph; graphs in attributes come first, each under its own name."""
    lines: list[str] = []
    _print_into(lines, graph, graph.name)
    return "\n".join(lines)


def _print_into(lines: list[str], graph: Graph, name: str) -> None:
    body: list[str] = []
    for position, node in enumerate(graph.nodes):
        attrs = []
        for key, value in node.attrs.items():
            if isinstance(value, Graph):
                inner = f"{name}.{position}.{key}"
                _print_into(lines, value, inner)
                attrs.append(f"{key}=@{inner}")
            else:
                attrs.append(f"{key}={print_attribute(value)}")
        outputs = ", ".join(f"%{value.name}: {value.type}" for value in node.outputs)
        inputs = ", ".join(f"%{value.name}" for value in node.inputs)
        text = f"  {outputs} = {node.op}({inputs})"
        if attrs:
            text += " {" + "; ".join(attrs) + "}"
        if (node.layer, node.direction) != (-1, "forward"):
            text += f" @{node.layer}.{node.direction}"
        if node.source:
            text += f" # {node.source}"
        body.append(text)
    inputs = ", ".join(f"%{value.name}: {value.type}" for value in graph.inputs)
    lines.append(f"graph @{name}({inputs}) {{")
    lines.extend(body)
    lines.append("  return " + ", ".join(f"%{value.name}" for value in graph.outputs))
    lines.append("}")


def digest(array: Array) -> str:
    """Hex name of an array's dtype, shape and bytes (first 16 digits of SHA-256)."""
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()[:16]


def print_attribute(value: Any) -> str:
    """Text of one attribute; equal attributes have equal texts."""
    if isinstance(value, Graph):
        return print_graph(value)
    if isinstance(value, np.ndarray):
        if value.size <= _INLINE_ELEMENTS:
            return f"dense({value.dtype.name}, {list(value.shape)}, {value.ravel().tolist()})"
        return f"digest({value.dtype.name}, {list(value.shape)}, {digest(value)})"
    return repr(value)


def collect_constants(graph: Graph) -> Constants:
    """Arrays that the text form names by digest."""
    found: Constants = {}
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, Graph):
                found.update(collect_constants(value))
            elif isinstance(value, np.ndarray) and value.size > _INLINE_ELEMENTS:
                found[digest(value)] = value
    return found


def parse_graph(text: str, constants: Optional[Constants] = None) -> Graph:
    """The inverse of print_graph; returns the last graph of the text.

    Raises:
        GraphError: a line cannot be read, or names a value or constant that does not exist.
    """
    graphs: dict[str, Graph] = {}
    current: Optional[Graph] = None
    values: dict[str, Value] = {}
    last = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line:
            continue
        header = _HEADER.match(line)
        if header:
            last = header["name"]
            current = graphs[last] = Graph(last)
            values = {}
            for name, type_text in _typed_names(header["inputs"]):
                values[name] = current.add_input(name, parse_type(type_text))
        elif current is None:
            raise _syntax_error("graph", number, raw, "a line 'graph @name(...) {'")
        elif line == "}":
            current = None
        elif line.startswith("return"):
            names = [part.strip()[1:] for part in line[6:].split(",") if part.strip()]
            current.outputs = [_lookup(values, name, number, raw) for name in names]
        else:
            _parse_node(current, values, graphs, constants or {}, number, line)
    if not graphs:
        raise _syntax_error("graph", 0, text, "at least one graph")
    return graphs[last]


def _parse_node(
    graph: Graph,
    values: dict[str, Value],
    graphs: dict[str, Graph],
    constants: Constants,
    number: int,
    line: str,
) -> None:
    match = _LINE.match(line)
    if match is None:
        raise _syntax_error("graph", number, line, "'%out: type = op(%in, ...) {attr=value}'")
    names = [part.strip()[1:] for part in match["inputs"].split(",") if part.strip()]
    inputs = [_lookup(values, name, number, line) for name in names]
    attrs: dict[str, Any] = {}
    for part in _split(match["attrs"] or "", ";"):
        key, _, text = part.strip().partition("=")
        attrs[key] = _parse_attribute(text, graphs, constants, number, line)
    node = Node(match["op"], inputs, attrs, match["src"] or "")
    if match["layer"]:
        node.layer, node.direction = int(match["layer"]), match["direction"]
    for index, (name, type_text) in enumerate(_typed_names(match["outputs"])):
        value = Value(graph.unique_name(name), parse_type(type_text), node, index)
        node.outputs.append(value)
        values[name] = value
    graph.nodes.append(node)


def _parse_attribute(
    text: str, graphs: dict[str, Graph], constants: Constants, number: int, line: str
) -> Any:
    if text.startswith("@"):
        return graphs[text[1:]]
    kind, _, rest = text.partition("(")
    if kind in ("dense", "digest"):
        dtype, shape, content = _split(rest[:-1], ",")
        dims = ast.literal_eval(shape.strip())
        if kind == "digest":
            if content.strip() not in constants:
                raise _syntax_error(
                    "graph", number, line, f"the array {content.strip()} in the constants table"
                )
            return constants[content.strip()]
        numbers = content.replace("nan", "'nan'").replace("inf", "'inf'").replace("-'", "'-")
        return np.array(ast.literal_eval(numbers.strip()), dtype).reshape(dims)
    if text in ("inf", "-inf", "nan"):
        return float(text)
    return parse_literal(text)


def _typed_names(text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in _split(text, ","):
        name, _, type_text = part.strip().rpartition(": ")
        pairs.append((name[1:], type_text))
    return pairs


def _split(text: str, separator: str) -> list[str]:
    parts, depth, start, quote = [], 0, 0, ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if text[start:].strip():
        parts.append(text[start:])
    return parts


def _lookup(values: dict[str, Value], name: str, number: int, line: str) -> Value:
    if name not in values:
        raise _syntax_error("graph", number, line, f"%{name} to be defined on an earlier line")
    return values[name]


# feature 'x' = %x          variable 'w' = %w: float32[4] trained
# update 'w'                result 'loss'
_STEP_LINE = re.compile(
    r"(?P<kind>feature|variable|draw|update|result) (?P<name>'.*?'|\".*?\")"
    r"(?: = %(?P<value>\S+?))?(?:: (?P<type>\S+)(?P<trained> trained)?)?$"
)


def print_step(step: StepGraph) -> str:
    """Text of a step; outputs are listed in the graph's order."""
    lines = [f"feature {name!r} = %{value.name}" for name, value in step.features.items()]
    for name, spec in step.specs.items():
        held = step.variables.get(name)
        given = f" = %{held.name}" if held is not None else ""
        trained = " trained" if spec.trainable else ""
        lines.append(f"variable {name!r}{given}: {spec.type}{trained}")
    for name, value in step.variables.items():
        if name not in step.specs:
            lines.append(f"variable {name!r} = %{value.name}")
    for name, draw in step.draws.items():
        lines.append(f"draw {name!r}: {draw.key},{draw.stream},{draw.size}")
    kinds = sorted(step.labels, key=lambda key: step.labels[key])
    lines += [f"{kind} {name!r}" for kind, name in kinds]
    return "\n".join(["step", *lines, print_graph(step.graph)])


def parse_step(text: str, constants: Optional[Constants] = None) -> StepGraph:
    """The inverse of print_step.

    Raises:
        GraphError: a line cannot be read, or names an input that the graph does not have.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("graph @")), len(lines))
    if not lines or lines[0] != "step":
        raise _syntax_error("step", 1, lines[0] if lines else "", "the line 'step'")
    step = StepGraph(parse_graph("\n".join(lines[start:]), constants))
    inputs = {value.name: value for value in step.graph.inputs}
    for number, line in enumerate(lines[1:start], 2):
        _parse_line(step, inputs, number, line)
    if len(step.labels) != len(step.graph.outputs):
        raise _syntax_error(
            "step", start, "", f"a name for each of {len(step.graph.outputs)} outputs"
        )
    return step


def _parse_line(step: StepGraph, inputs: dict[str, Value], number: int, line: str) -> None:
    match = _STEP_LINE.match(line)
    if match is None:
        raise _syntax_error(
            "step", number, line, "feature, variable, update or result and a name in quotes"
        )
    kind, name, held = match["kind"], ast.literal_eval(match["name"]), match["value"]
    if kind in (UPDATE, RESULT):
        step.labels[kind, name] = len(step.labels)
        return
    if held is not None and held not in inputs:
        raise _syntax_error("step", number, line, f"%{held} to be an input of the graph")
    if kind == "draw":
        key, stream, size = (match["type"] or "").split(",")
        step.draws[name] = Draw(int(key), int(stream), parse_dim(size))
        return
    if held is not None:
        (step.features if kind == "feature" else step.variables)[name] = inputs[held]
    if match["type"]:
        step.specs[name] = Variable(name, parse_type(match["type"]), bool(match["trained"]))


def _syntax_error(kind: str, number: int, line: str, expected: str) -> GraphError:
    return GraphError(
        f"{kind} text, line {number}: expected {expected}. Received: {line.strip()!r}. Correct it."
    )
