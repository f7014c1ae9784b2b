"""Graphs and programs as data: build, print, parse, verify."""

from cerebras_tf.ir.binding import bind_graph, substitute, symbols_in
from cerebras_tf.ir.dimensions import Dim, Size, Symbol, bound_of, min_of, parse_dim
from cerebras_tf.ir.graph import Graph, Node, Value
from cerebras_tf.ir.step import StepGraph, Variable
from cerebras_tf.ir.text import collect_constants, parse_graph, parse_step, print_graph, print_step
from cerebras_tf.ir.types import Array, Shape, TensorType, parse_type
from cerebras_tf.ir.verify import verify

__all__ = [
    "Array",
    "Dim",
    "Graph",
    "Node",
    "Shape",
    "Size",
    "StepGraph",
    "Symbol",
    "TensorType",
    "Value",
    "Variable",
    "bind_graph",
    "collect_constants",
    "min_of",
    "bound_of",
    "parse_dim",
    "parse_graph",
    "parse_step",
    "parse_type",
    "print_graph",
    "print_step",
    "substitute",
    "symbols_in",
    "verify",
]
