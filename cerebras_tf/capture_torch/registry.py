"""The table of rules: how each aten op becomes IR.

A rule is a function `rule(low, ...)` whose further parameters are the arguments of the op that it
reads, by their names in the op's schema; `x` is the argument named `self` or `input`. Arguments
that a rule does not name must have their default values, see `arguments`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from cerebras_tf.capture_torch import internals
from cerebras_tf.errors import GraphError, UnsupportedOpError

Rule = TypeVar("Rule", bound=Callable[..., Any])
# By the name of the op with its overload, such as aten.add.Tensor.
RULES: dict[str, Callable[..., Any]] = {}
# Arguments that change neither a number nor a gradient.
NO_EFFECT = {"cudnn_enable", "cudnn_enabled", "device", "implicit", "layout", "memory_format"}
NO_EFFECT |= {"non_blocking", "pin_memory"}
_RENAMED = {"self": "x", "input": "x"}


def lowers(*ops: str) -> Callable[[Rule], Rule]:
    """Registers a rule for ops, written `add.Tensor`; `add` stands for `add.default`.

    Ops of other libraries than aten are written `library::op`.
    """

    def register(rule: Rule) -> Rule:
        for op in ops:
            name = op.replace("::", ".") if "::" in op else f"aten.{op}"
            name = name if "." in op else f"{name}.default"
            if name in RULES:
                raise GraphError(
                    f"rules of aten: an op must have one rule. Received: two of {name}."
                )
            RULES[name] = rule
        return rule

    return register


def reads(rule: Callable[..., Any]) -> list[str]:
    """The arguments of an op that a rule reads."""
    return list(inspect.signature(rule).parameters)[1:]


def arguments(rule: Callable[..., Any], node: torch.fx.Node) -> dict[str, Any]:
    """What a node passes to its rule, by parameter; tensors are still nodes.

    Raises:
        UnsupportedOpError: an argument that the rule does not read differs from its default.
    """
    names, found = reads(rule), {}
    for position, argument in enumerate(internals.schema(node.target).arguments):
        name = _RENAMED.get(argument.name, argument.name)
        has_default = argument.has_default_value()
        default = argument.default_value if has_default else None
        if position < len(node.args):
            value = node.args[position]
        else:
            value = node.kwargs.get(argument.name, default)
        if name in names:
            found[name] = value
        elif name not in NO_EFFECT and not (has_default and _equal(value, default)):
            raise UnsupportedOpError(
                f"{node.target}: argument {argument.name} must be {default}. Received: {value}."
            )
    return found


def _equal(value: Any, default: Any) -> bool:
    """Whether a value is the default; [0, 0] equals a default of 0."""
    if isinstance(value, (list, tuple)) and not isinstance(default, (list, tuple)):
        return bool(value) and all(_equal(item, default) for item in value)
    if isinstance(value, (list, tuple)):
        return len(value) == len(default) and all(map(_equal, value, default))
    return type(value) is type(default) and bool(value == default)
