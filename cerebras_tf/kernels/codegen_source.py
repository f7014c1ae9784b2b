"""Python source of one fused elementwise kernel, for Numba to compile.

The kernel walks rows of a collapsed iteration space; sizes, steps and addresses come at run time,
so one compiled kernel serves every shape of the same pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.kernels.codegen_expressions import PLACED, can_write, expression, literal

_HEAD = '''"""Generated: {text}"""

import math

import numpy as np

from cerebras_tf.kernels import compiled_math as vector
from cerebras_tf.kernels.compiled_intrinsics import ceil, fabs, floor, half, loader, rint
from cerebras_tf.kernels.compiled_intrinsics import sqrt, storer
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_rounding import nearest_bfloat16, rounded_randomly

FLOAT32_ZERO, FLOAT32_ONE, FLOAT32_INF = np.float32(0), np.float32(1), np.float32(np.inf)
FLOAT64_ZERO, FLOAT64_ONE, FLOAT64_INF = np.float64(0), np.float64(1), np.float64(np.inf)
'''
_KERNEL = """

@jit(cache={cached})
def kernel(start, stop, by_rows, others, sizes, steps, addresses):
    row, last_row = (start, stop) if by_rows else (0, others)
    first, last = (0, others) if by_rows else (start, stop)
    for row in range(row, last_row):
        rest = row
"""


class Pattern(NamedTuple):
    """What of a call is compiled in; operands are the body's inputs, then its outputs.

    Attributes:
        dtypes: NumPy dtype name of every operand.
        moves: whether an operand advances along the innermost axis (else it is one number a row).
        same: for every input the output whose memory it shares element by element; -1: none.
    """

    dtypes: tuple[str, ...]
    moves: tuple[bool, ...]
    same: tuple[int, ...]


def write_source(body: Any, pattern: Pattern, cached: bool) -> str:
    """Source of a module with one function, `kernel`.

    It computes rows from start to stop, `others` being columns, or columns, `others` being rows.

    Args:
        body: an ir.Graph of elementwise ops on scalars.
        pattern: how a call's operands lie.
        cached: whether the module will be a file, so that machine code can be kept beside it.
    """
    inputs, outputs = len(body.inputs), len(body.outputs)
    names = [f"x{i}" for i in range(inputs)]
    head = [_HEAD.format(text=" ".join(node.op for node in body.nodes))]
    address = [f"a{i}" for i in range(inputs + outputs)]
    dtypes = [
        value.dtype if value.dtype == "bfloat16" else dtype  # whose arrays hold bits
        for value, dtype in zip([*body.inputs, *body.outputs], pattern.dtypes)
    ]
    for i, output in enumerate(pattern.same):
        region = output
        if output >= 0:
            address[i] = f"a{inputs + output}"
        head.append(f"load{i} = loader({dtypes[i]!r}, {region}, {outputs})")
    for i in range(outputs):
        head.append(f"store{i} = storer({dtypes[inputs + i]!r}, {i}, {outputs})")
    variables = dict(zip(body.inputs, names))
    constants, statements = _statements(body, variables)
    head.extend(constants)
    rows, elements = _loads(pattern, address, inputs)
    for i, value in enumerate(body.outputs):
        position = "i" if pattern.moves[inputs + i] else "0"
        statements.append(f"store{i}({address[inputs + i]}, {position}, {variables[value]})")
    if any(node.op in PLACED for node in body.nodes):
        size = np.dtype(pattern.dtypes[inputs]).itemsize
        rows.append(f"origin = (a{inputs} - addresses[{inputs}]) // {size}")
        elements.append("place = origin + i" if pattern.moves[inputs] else "place = origin")
    own = [i for i in range(inputs + outputs) if i >= inputs or pattern.same[i] < 0]
    text = "\n".join(head) + "\n" + _KERNEL.format(cached=cached)
    text += "".join(f"        a{i} = addresses[{i}]\n" for i in own)
    text += "        for axis in range(sizes.size - 1, -1, -1):\n"
    text += "            at = rest % sizes[axis]\n            rest //= sizes[axis]\n"
    text += "".join(f"            a{i} += at * steps[{i}, axis]\n" for i in own)
    text += "".join(f"        {line}\n" for line in rows)
    text += "        for i in range(first, last):\n"
    return text + "".join(f"            {line}\n" for line in [*elements, *statements])


def _loads(pattern: Pattern, address: Sequence[str], inputs: int) -> tuple[list[str], list[str]]:
    """Loads made once a row, and those made for every element."""
    rows, elements = [], []
    for i in range(inputs):
        if pattern.moves[i]:
            elements.append(f"x{i} = load{i}({address[i]}, i)")
        else:
            rows.append(f"x{i} = load{i}({address[i]}, 0)")
    return rows, elements


def _statements(body: Any, variables: dict[Any, str]) -> tuple[list[str], list[str]]:
    """Module-level constants, and one assignment a node; fills in the nodes' variables."""
    constants: list[str] = []
    statements: list[str] = []
    for node in body.nodes:
        value = node.outputs[0]
        if node.op == "constant":
            name = f"C{len(constants)}"
            constants.append(f"{name} = {literal(value.constant, value.dtype)}")
        else:
            name = f"v{len(statements)}"
            operands = [variables[operand] for operand in node.inputs]
            text = expression(
                node.op, _decisive_dtype(node), operands, value.dtype, _exponent(node)
            )
            statements.append(f"{name} = {text}")
        variables[value] = name
    return constants, statements


def check_body(body):
    """Raises UnsupportedOpError where an op has no generated form for its operands' dtype."""
    for node in body.nodes:
        if node.op != "constant" and not can_write(node.op, _decisive_dtype(node)):
            raise UnsupportedOpError(
                f"elementwise fusion: every op must have a generated form. Received: {node!r} "
                f"of {_decisive_dtype(node)}. Leave it out of the fused body."
            )


def _decisive_dtype(node: Any) -> str:
    """The dtype that an op's form depends on: of its operands; for select, of its choices."""
    dtype: str = node.inputs[1 if node.op == "select" else 0].dtype
    return dtype


def _exponent(node: Any) -> Optional[float]:
    """The value of a constant second operand."""
    if len(node.inputs) < 2 or node.inputs[1].constant is None:
        return None
    return float(node.inputs[1].constant.reshape(-1)[0])
