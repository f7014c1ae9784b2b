"""Replaces symbols by numbers, in types, attributes and the graphs that attributes hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cerebras_tf.ir.dimensions import Dim, Symbol
from cerebras_tf.ir.graph import Graph, Value
from cerebras_tf.ir.types import TensorType


def substitute(value: Any, sizes: Mapping[str, int]) -> Any:
    """Binds the symbols of an attribute or type to sizes.

    Args:
        value: a Dim, a type, a graph, or tuples, lists and dicts of them; else returned unchanged.
        sizes: size of every symbol, by name.

    Returns:
        The value without symbols; the same object where it holds none.

    Raises:
        GraphError: a symbol has no size, or one beyond its bound.
    """
    if isinstance(value, (Dim, TensorType)):
        return value.at(sizes) if has_symbols(value) else value
    if isinstance(value, Graph):
        return bind_graph(value, sizes) if has_symbols(value) else value
    if isinstance(value, (tuple, list)):
        parts = [substitute(item, sizes) for item in value]
        if all(new is old for new, old in zip(parts, value)):
            return value
        return type(value)(parts)
    if isinstance(value, dict):
        entries = {key: substitute(item, sizes) for key, item in value.items()}
        return value if all(entries[key] is value[key] for key in value) else entries
    return value


def bind_graph(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """A copy of a graph with its symbols bound to sizes; raises GraphError as `substitute`."""
    return copy_graph(graph, lambda part: substitute(part, sizes))


def copy_graph(graph: Graph, change: Callable[[Any], Any]) -> Graph:
    """A copy of a graph, its types and attributes changed by a function."""
    copy = Graph(graph.name)
    mapping: dict[Value, Value] = {}
    for value in graph.inputs:
        mapping[value] = copy.add_input(value.name, change(value.type))
    for node in graph.nodes:
        types = [change(value.type) for value in node.outputs]
        operands = [mapping[value] for value in node.inputs]
        made = copy.make_node(node.op, operands, change(node.attrs), types, node.source)
        made.layer, made.direction = node.layer, node.direction
        for old, new in zip(node.outputs, made.outputs):
            mapping[old] = new
        copy.nodes.append(made)
    copy.outputs = [mapping[value] for value in graph.outputs]
    return copy


def with_bounds(value: Any, bounds: Mapping[str, int]) -> Any:
    """A value as for `substitute`, with the bounds of its symbols replaced by name.

    Raises:
        GraphError: a bound is beyond the limit of its symbol.
    """
    if not has_symbols(value):
        return value
    if isinstance(value, Dim):
        terms = dict(value.terms)
        return Dim({tuple(s.with_bound(bounds[s.name]) for s in p): n for p, n in terms.items()})
    if isinstance(value, TensorType):
        return value.with_shape(with_bounds(value.shape, bounds))
    if isinstance(value, (tuple, list)):
        return type(value)(with_bounds(item, bounds) for item in value)
    if isinstance(value, dict):
        return {key: with_bounds(item, bounds) for key, item in value.items()}
    return copy_graph(value, lambda part: with_bounds(part, bounds))


def has_symbols(value: Any) -> bool:
    """Whether a value depends on symbols; faster than `symbols_in`."""
    if isinstance(value, TensorType):
        value = value.shape
    if isinstance(value, (tuple, list)):
        return any(map(has_symbols, value))
    if isinstance(value, dict):
        return any(map(has_symbols, value.values()))
    if isinstance(value, Graph):
        return any(has_symbols(item.type) for item in value.inputs) or any(
            has_symbols(node.attrs) or any(has_symbols(item.type) for item in node.outputs)
            for node in value.nodes
        )
    return isinstance(value, Dim)


def symbols_in(value: Any) -> frozenset[Symbol]:
    """The symbols that a type, an attribute or a graph depends on."""
    if isinstance(value, Dim):
        return value.symbols
    if isinstance(value, TensorType):
        return symbols_in(value.shape)
    if isinstance(value, Graph):
        made = [(node.attrs, [v.type for v in node.outputs]) for node in value.nodes]
        return symbols_in([[v.type for v in value.inputs], made])
    if isinstance(value, dict):
        return symbols_in(list(value.values()))
    if isinstance(value, (tuple, list)):
        return frozenset().union(*(symbols_in(item) for item in value))
    return frozenset()
