"""The wrapper that gradient rules of ops with one output share.

It handles the absent cotangent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Optional

from cerebras_tf.ir import Node, Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.registry import Vjp

Cotangents = list[Optional[Value]]
# Cotangent of the only output in, cotangents of the inputs out.
Rule = Callable[[Builder, Node, Value], Cotangents]


def of_one_output(rule: Rule) -> Vjp:
    """A rule that sees the cotangent itself; where it is zero, so are those of all inputs."""

    @functools.wraps(rule)
    def vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
        dy = dys[0]
        if dy is None:
            return [None] * len(node.inputs)
        return rule(b, node, dy)

    return vjp
