"""The text form of a step: print_step and its inverse parse_step.

Lines say what the inputs and outputs of the graph mean; the graph's own text follows. Constants of
more than 16 elements are named by digest there: `collect_constants` gives the table that parsing
needs.
"""

from __future__ import annotations

import ast
import re
from typing import Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir.dimensions import parse_dim
from cerebras_tf.ir.graph import Value
from cerebras_tf.ir.step import RESULT, UPDATE, Draw, StepGraph, Variable
from cerebras_tf.ir.text import Constants, parse_graph, print_graph
from cerebras_tf.ir.types import parse_type

# feature 'x' = %x          variable 'w' = %w: float32[4] trained
# update 'w'                result 'loss'
_LINE = re.compile(
    r"(?P<kind>feature|variable|draw|update|result) (?P<name>'.*?'|\".*?\")"
    r"(?: = %(?P<value>\S+?))?(?:: (?P<type>\S+)(?P<trained> trained)?)?$"
)


def print_step(step: StepGraph) -> str:
    """Text of a step; outputs are listed in the order of the graph's."""
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
        lines.append(f"draw {name!r}: {draw.seed},{draw.seed2},{draw.size}")
    kinds = sorted(step.labels, key=lambda key: step.labels[key])
    lines += [f"{kind} {name!r}" for kind, name in kinds]
    return "\n".join(["step", *lines, print_graph(step.graph)])


def parse_step(text: str, constants: Optional[Constants] = None) -> StepGraph:
    """The inverse of print_step.

    Args:
        text: what print_step gave.
        constants: arrays that the text names by digest.

    Raises:
        GraphError: a line cannot be read, or names an input that the graph does not have.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("graph @")), len(lines))
    if not lines or lines[0] != "step":
        raise _syntax(1, lines[0] if lines else "", "the line 'step'")
    step = StepGraph(parse_graph("\n".join(lines[start:]), constants))
    inputs = {value.name: value for value in step.graph.inputs}
    for number, line in enumerate(lines[1:start], 2):
        _parse_line(step, inputs, number, line)
    if len(step.labels) != len(step.graph.outputs):
        raise _syntax(start, "", f"a name for each of {len(step.graph.outputs)} outputs")
    return step


def _parse_line(step: StepGraph, inputs: dict[str, Value], number: int, line: str) -> None:
    match = _LINE.match(line)
    if match is None:
        raise _syntax(number, line, "feature, variable, update or result and a name in quotes")
    kind, name, held = match["kind"], ast.literal_eval(match["name"]), match["value"]
    if kind in (UPDATE, RESULT):
        step.labels[kind, name] = len(step.labels)
        return
    if held is not None and held not in inputs:
        raise _syntax(number, line, f"%{held} to be an input of the graph")
    if kind == "draw":
        seed, seed2, size = (match["type"] or "").split(",")
        step.draws[name] = Draw(int(seed), int(seed2), parse_dim(size))
        return
    if held is not None:
        (step.features if kind == "feature" else step.variables)[name] = inputs[held]
    if match["type"]:
        step.specs[name] = Variable(name, parse_type(match["type"]), bool(match["trained"]))


def _syntax(number: int, line: str, expected: str) -> GraphError:
    return GraphError(
        f"step text, line {number}: expected {expected}. Received: {line!r}. Correct it."
    )
