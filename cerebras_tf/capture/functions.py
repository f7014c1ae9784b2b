"""Bodies of TensorFlow functions: what conditionals and calls run.

This file deliberately lowers nothing itself.
"""

from __future__ import annotations

from typing import Any

# Operation type -> attributes that name the functions it runs.
FUNCTION_ATTRIBUTES = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
}


def function_bodies(op: Any) -> list[Any]:
    """FuncGraphs an operation runs, in the order of its attributes; [] for ordinary operations."""
    names = FUNCTION_ATTRIBUTES.get(op.type, ())
    return [_body(op, op.get_attr(name).name) for name in names]


def _body(op: Any, name: str) -> Any:
    # Private API of TF 2.15: there is no public way from a function's name to its graph.
    return op.graph._get_function(name).graph
