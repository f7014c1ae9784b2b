"""The text form of graphs: print_graph and its inverse parse_graph.

Constants of more than 16 elements are printed by digest; parsing them back needs the table that
`collect_constants` gives. Parsing checks syntax only; `verify` checks the graph.
"""

from __future__ import annotations

import ast
import hashlib
import re
from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import GraphError
from cerebras_tf.ir.dimensions import parse_literal
from cerebras_tf.ir.graph import Graph, Node, Value
from cerebras_tf.ir.types import Array, parse_type

_INLINE_ELEMENTS = 16
_HEADER = re.compile(r"graph @(?P<name>[^\s(]+)\((?P<inputs>.*)\) \{$")
_LINE = re.compile(
    r"(?P<outputs>%.*?) = (?P<op>\w+)\((?P<inputs>[^)]*)\)"
    r"(?: \{(?P<attrs>.*)\})?(?: @(?P<layer>-?\d+)\.(?P<direction>\w+))?(?: # (?P<src>.*))?$"
)
Constants = dict[str, Array]


def print_graph(graph: Graph) -> str:
    """Text of a graph; graphs held in attributes come first, each under its own name."""
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
    """Arrays that the text form names by digest, by that digest."""
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
            raise _syntax(number, raw, "a line 'graph @name(...) {'")
        elif line == "}":
            current = None
        elif line.startswith("return"):
            names = [part.strip()[1:] for part in line[6:].split(",") if part.strip()]
            current.outputs = [_lookup(values, name, number, raw) for name in names]
        else:
            _parse_node(current, values, graphs, constants or {}, number, line)
    if not graphs:
        raise _syntax(0, text, "at least one graph")
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
        raise _syntax(number, line, "'%out: type = op(%in, ...) {attr=value}'")
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
                raise _syntax(number, line, f"the array {content.strip()} in the constants table")
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
    """Splits at a separator that stands outside brackets and quotes."""
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
        raise _syntax(number, line, f"%{name} to be defined on an earlier line")
    return values[name]


def _syntax(number: int, line: str, expected: str) -> GraphError:
    return GraphError(
        f"graph text, line {number}: expected {expected}. Received: {line.strip()!r}. Correct it."
    )
