"""Python source of a fused elementwise kernel, for Numba to compile.

The tables hold one line per op: `{0}` is the first operand, `{one}` and the like are constants of
its dtype. A test compares every op with its definition in elementwise.py. The kernel walks rows of
a collapsed iteration space; sizes, strides and addresses are arguments, so one compiled kernel
serves every shape with the same pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.kernels.half_precision import to_bfloat16, to_float32

INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")

# Ops of every dtype.
_ANY = {
    "identity": "{0}",
    "stop_gradient": "{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "square": "{0} * {0}",
    "squared_difference": "({0} - {1}) * ({0} - {1})",
    "neg": "-{0}",
    "maximum": "{0} if ({0} > {1}) | ({0} != {0}) else {1}",
    "minimum": "{0} if ({0} < {1}) | ({0} != {0}) else {1}",
    "relu": "{zero} if {0} < {zero} else {0}",
    "sign": "{one} if {0} > {zero} else (-{one} if {0} < {zero} else {0})",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "floor_mod": "{0} % {1}",
}
_BOOL = {
    **{op: _ANY[op] for op in ("identity", "stop_gradient", "equal", "not_equal")},
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_not": "not {0}",
}
_INTEGER = {
    **_ANY,
    "abs": "abs({0})",
    "div": "np.float64({0}) / np.float64({1})",
    "floor_div": "{0} // {1}",
    "trunc_mod": "abs({0}) % abs({1}) * (1 if {0} >= 0 else -1)",
    "pow": "{0} ** {1}",
}
_FLOAT = {
    **_ANY,
    "abs": "fabs({0})",
    "sqrt": "sqrt({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "round": "rint({0})",
    "is_nan": "{0} != {0}",
    "is_inf": "fabs({0}) == {inf}",
    "is_finite": "fabs({0}) < {inf}",
    "div": "{0} / {1}",
    "div_no_nan": "{zero} if {1} == {zero} else {0} / {1}",
    "floor_div": "floor({0} / {1})",
    "trunc_mod": "np.fmod({0}, {1})",
    "reciprocal": "{one} / {0}",
    "rsqrt": "{one} / sqrt({0})",
    # The reciprocal shows the sign of a zero.
    "masked_like": "{0} if ({0} == {zero}) & ({one} / {0} < {zero}) else {1} + {zero}",
}
_LIBRARY = ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf")
# Rare ops: C's library, in float64, for every dtype.
_RARE = ("tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erfc")
_FROM_C = {
    **{op: f"math.{op}(np.float64({{0}}))" for op in _RARE},
    "atan2": "math.atan2(np.float64({0}), np.float64({1}))",
}
_FLOAT32 = {
    **_FLOAT,
    **_FROM_C,
    **{op: f"vector.{op}({{0}})" for op in (*_LIBRARY, "sigmoid", "softplus")},
    "pow": "vector.power({0}, {1})",
    "round_randomly": "round_stochastically({0}, place, {1})",
}
_FLOAT64 = {
    **_FLOAT,
    **_FROM_C,
    **{op: f"math.{op}({{0}})" for op in _LIBRARY},
    "pow": "math.pow({0}, {1})",
    "sigmoid": "({one} if {0} >= {zero} else math.exp({0})) / ({one} + math.exp(-abs({0})))",
    "softplus": "({0} if {0} > {zero} else {zero}) + math.log1p(math.exp(-abs({0})))",
}
_TABLES = {
    "bool": _BOOL,
    **dict.fromkeys(INTEGERS, _INTEGER),
    "float16": _FLOAT32,
    "bfloat16": _FLOAT32,
    "float32": _FLOAT32,
    "float64": _FLOAT64,
}
# Ops whose result depends on an element's index, `place` in the kernel.
POSITIONAL = ("round_randomly",)
_ROUNDING = {"float16": "round_to_float16", "bfloat16": "round_to_bfloat16"}
# x^n by multiplications, for common exponents.
_POWERS = {
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
    -1.0: "{one} / {0}",
    -2.0: "{one} / ({0} * {0})",
}


def python_type(dtype: str) -> str:
    """Constructor of a value in a register; half precision is held in float32."""
    return {"float16": "np.float32", "bfloat16": "np.float32", "bool": "bool"}.get(
        dtype, f"np.{dtype}"
    )


def literal(value: Any, dtype: str) -> str:
    """Source of a constant, exact to the last bit."""
    number = np.asarray(value).reshape(-1)[0]
    if dtype == "bool":
        return str(bool(number))
    if "float" not in dtype:
        return f"{python_type(dtype)}({int(number)})"
    if dtype == "bfloat16":  # a constant's array holds float32
        number = to_float32(to_bfloat16(number))
    text = float(number).hex() if np.isfinite(number) else str(float(number))
    return f"{python_type(dtype)}(float.fromhex({text!r}))"


def can_write(op: str, dtype: str) -> bool:
    """Whether an op can be generated for operands (for select: choices) of this dtype."""
    return op in ("cast", "select") or op in _TABLES.get(dtype, {})


def expression(
    op: str, dtype: str, operands: list[str], out_dtype: str, exponent: Optional[float]
) -> str:
    """Source of one op's value.

    Args:
        op: an op for which `can_write` holds.
        exponent: the second operand's value if it is constant.
    """
    if op == "cast":
        text = f"{operands[0]} != 0" if out_dtype == "bool" else operands[0]
    elif op == "select":
        text = f"{operands[1]} if {operands[0]} else {operands[2]}"
    else:
        form = _TABLES[dtype][op]
        if op == "pow" and exponent in _POWERS:
            form = _POWERS[exponent]
        kind = "FLOAT64" if dtype == "float64" else "FLOAT32"
        integral = dtype in INTEGERS
        form = form.replace("{zero}", "0" if integral else f"{kind}_ZERO")
        form = form.replace("{one}", "1" if integral else f"{kind}_ONE")
        text = form.replace("{inf}", f"{kind}_INF").format(*operands)
    text = f"{python_type(out_dtype)}({text})"
    if op in POSITIONAL:  # rounds itself
        return text
    return f"{_ROUNDING[out_dtype]}({text})" if out_dtype in _ROUNDING else text


_HEAD = '''"""Generated: {text}"""

import math

import numpy as np

from cerebras_tf.kernels import compiled_math as vector
from cerebras_tf.kernels.compiled_intrinsics import ceil, fabs, floor, loader, rint
from cerebras_tf.kernels.compiled_intrinsics import round_to_float16, sqrt, storer
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_half_precision import round_stochastically, round_to_bfloat16

FLOAT32_ZERO, FLOAT32_ONE, FLOAT32_INF = np.float32(0), np.float32(1), np.float32(np.inf)
FLOAT64_ZERO, FLOAT64_ONE, FLOAT64_INF = np.float64(0), np.float64(1), np.float64(np.inf)
'''
_KERNEL = """

@jit()
def kernel(start, stop, by_rows, others, sizes, steps, addresses):
    row, last_row = (start, stop) if by_rows else (0, others)
    first, last = (0, others) if by_rows else (start, stop)
    for row in range(row, last_row):
        rest = row
"""


class Pattern(NamedTuple):
    """What is compiled into a kernel; operands are the body's inputs, then its outputs.

    Attributes:
        dtypes: NumPy dtype name of every operand.
        advances: whether an operand advances along the innermost axis, else it is one number a row.
        aliases: for every input, the output whose memory it shares; -1: none.
    """

    dtypes: tuple[str, ...]
    advances: tuple[bool, ...]
    aliases: tuple[int, ...]


def write_source(body: Any, pattern: Pattern) -> str:
    """Source of a module with one function, `kernel`.

    It computes rows [start, stop), `others` being columns, or columns [start, stop), `others` being
    rows.

    Args:
        body: an ir.Graph of elementwise ops on scalars.
        pattern: layouts of a call's operands.
    """
    inputs, outputs = len(body.inputs), len(body.outputs)
    names = [f"x{i}" for i in range(inputs)]
    head = [_HEAD.format(text=" ".join(node.op for node in body.nodes))]
    address = [f"a{i}" for i in range(inputs + outputs)]
    dtypes = [
        value.dtype if value.dtype == "bfloat16" else dtype  # whose arrays hold bits
        for value, dtype in zip([*body.inputs, *body.outputs], pattern.dtypes)
    ]
    for i, output in enumerate(pattern.aliases):
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
        position = "i" if pattern.advances[inputs + i] else "0"
        statements.append(f"store{i}({address[inputs + i]}, {position}, {variables[value]})")
    if any(node.op in POSITIONAL for node in body.nodes):
        size = np.dtype(pattern.dtypes[inputs]).itemsize
        rows.append(f"origin = (a{inputs} - addresses[{inputs}]) // {size}")
        elements.append("place = origin + i" if pattern.advances[inputs] else "place = origin")
    own = [i for i in range(inputs + outputs) if i >= inputs or pattern.aliases[i] < 0]
    text = "\n".join(head) + "\n" + _KERNEL
    text += "".join(f"        a{i} = addresses[{i}]\n" for i in own)
    text += "        for axis in range(sizes.size - 1, -1, -1):\n"
    text += "            at = rest % sizes[axis]\n            rest //= sizes[axis]\n"
    text += "".join(f"            a{i} += at * steps[{i}, axis]\n" for i in own)
    text += "".join(f"        {line}\n" for line in rows)
    text += "        for i in range(first, last):\n"
    return text + "".join(f"            {line}\n" for line in [*elements, *statements])


def _loads(pattern: Pattern, address: Sequence[str], inputs: int) -> tuple[list[str], list[str]]:
    """Loads made once per row, and loads made for every element."""
    rows, elements = [], []
    for i in range(inputs):
        if pattern.advances[i]:
            elements.append(f"x{i} = load{i}({address[i]}, i)")
        else:
            rows.append(f"x{i} = load{i}({address[i]}, 0)")
    return rows, elements


def _statements(body: Any, variables: dict[Any, str]) -> tuple[list[str], list[str]]:
    """Module-level constants, and one assignment per node; adds the nodes' variables."""
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
                f"of {_decisive_dtype(node)}. Do not fuse it."
            )


def _decisive_dtype(node: Any) -> str:
    """The dtype that selects an op's form: of its operands; for select, of its choices."""
    dtype: str = node.inputs[1 if node.op == "select" else 0].dtype
    return dtype


def _exponent(node: Any) -> Optional[float]:
    """The value of a constant second operand."""
    if len(node.inputs) < 2 or node.inputs[1].constant is None:
        return None
    return float(node.inputs[1].constant.reshape(-1)[0])
