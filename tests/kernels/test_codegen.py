"""Generated kernels against the plain ones: every op, layouts, dtypes, aliasing, the cache."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.kernels.codegen import FusedElementwise
from cerebras_tf.kernels.codegen_source import POSITIONAL, can_write
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import OPS, Builder

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    3.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-30,
    1e-42,
    88.0,
    -103.0,
]
BINARY = {
    *("add", "sub", "mul", "div", "div_no_nan", "floor_div", "floor_mod", "trunc_mod", "atan2"),
    *("squared_difference", "pow", "maximum", "minimum", "equal", "not_equal", "less"),
    *("less_equal", "greater", "greater_equal", "logical_and", "logical_or", "masked_like"),
}
ELEMENTWISE = sorted(name for name, op in OPS.items() if op.elementwise and name not in POSITIONAL)
# Ops whose results are rounded once are equal; the others within 2.5 units in the last place.
EXACT = BINARY - {"pow", "atan2"} | {"neg", "abs", "sqrt", "floor", "ceil", "round", "relu", "sign"}


def _body(build, *dtypes):
    graph = Graph("body")
    outputs = build(Builder(graph), *(graph.add_input("x", TensorType(d, ())) for d in dtypes))
    graph.outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    return graph


def _expected(body, arrays):
    values = dict(zip(body.inputs, arrays))
    for node in body.nodes:
        operands = [values[value] for value in node.inputs]
        if node.op == "constant":
            values[node.output] = node.attrs["value"]
        else:
            values[node.output] = evaluate(node.op, operands, node.attrs)[0]
    return [values[value] for value in body.outputs]


def _check(body, arrays, rtol=3e-7, atol=1e-44):
    """Compares every output; rtol may be one number an output."""
    expected = _expected(body, arrays)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    out = [np.zeros(shape, array.dtype) for array in expected]
    FusedElementwise(body)(arrays, out)
    for value, found, wanted, near in zip(
        body.outputs, out, expected, np.broadcast_to(rtol, len(out))
    ):
        wanted = np.broadcast_to(wanted, shape)
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(found, wanted, near, atol, err_msg=value.node.op)
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=value.node.op)
    return out


def _operands(dtype):
    random = np.random.default_rng(5)
    if dtype == "bool":
        pairs = np.array([[a, b] for a in (True, False) for b in (True, False)])
    elif "int" in dtype:
        values = np.array([-7, -2, -1, 0, 1, 2, 3, 5], dtype)
        pairs = np.array([[a, b] for a in values for b in values if b > 0], dtype)
    else:
        special = np.array([[a, b] for a in SPECIAL for b in SPECIAL])
        usual = random.standard_normal((300, 2)) * 3
        pairs = np.concatenate([special, usual]).astype(dtype)
    return list(pairs.T.copy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
def test_every_op_equals_its_plain_kernel(dtype):
    ops = [op for op in ELEMENTWISE if op not in ("cast", "select") and can_write(op, dtype)]
    missing = set(ELEMENTWISE) - set(ops) - {"cast", "select"}
    if "float" in dtype:
        assert missing == {"logical_and", "logical_or", "logical_not"}
    body = _body(
        lambda b, x, y: tuple(b.op(op, x, y) if op in BINARY else b.op(op, x) for op in ops),
        *[dtype] * 2,
    )
    near = 3e-7 if dtype == "float32" else 4e-15
    _check(body, _operands(dtype), [0 if op in EXACT else near for op in ops])


def test_select_ignores_nan_of_the_branch_that_is_not_taken():
    x, y = _operands("float32")
    body = _body(lambda b, c, v, w: b.op("select", c, v, w), "bool", "float32", "float32")
    _check(body, [x > 0, x, y], 0)


DTYPES = ["float32", "float64", "float16", "int32", "int64", "bool"]


@pytest.mark.parametrize("source", DTYPES)
def test_cast_equals_numpy(source):
    values = np.array([-3.7, -1, -0.3, 0, 0.3, 1, 2.5, 1000.1]).astype(source)
    _check(_body(lambda b, x: tuple(b.op("cast", x, dtype=d) for d in DTYPES), source), [values], 0)


def test_half_precision_rounds_after_every_op():
    x = np.linspace(-4, 4, 99).astype(np.float16)
    body = _body(lambda b, v: b.op("mul", b.op("add", v, 0.3), b.op("exp", v)), "float16")
    _check(body, [x], 0, 0)


def _gelu(b, x):
    inner = b.op("mul", b.op("add", x, b.op("mul", b.op("pow", x, 3.0), 0.044715)), 0.7978846)
    return b.op("mul", b.op("mul", x, 0.5), b.op("add", b.op("tanh", inner), 1.0))


@pytest.mark.parametrize(
    "shapes",
    [
        [(5, 7), (7,), (5, 1)],
        [(), (), ()],
        [(0, 3), (3,), ()],
        [(2, 1, 3), (4, 1), (2, 4, 3)],
        [(1,), (6, 1), (1, 9)],
        [(2, 3, 4, 5), (3, 1, 5), (1, 1, 4, 1)],
        [(70000,), (1,), ()],
        [(3, 50000), (50000,), (3, 1)],
    ],
)
def test_operands_broadcast_as_in_numpy(shapes):
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(shape).astype("f") for shape in shapes]
    body = _body(
        lambda b, x, y, z: (b.op("add", b.op("mul", x, y), z), b.op("less", x, z)), *["float32"] * 3
    )
    _check(body, arrays, 1e-6, 1e-6)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, 2:9],
        lambda x: x[::2],
        lambda x: x[:, ::-1],
        lambda x: x.T,
        lambda x: np.broadcast_to(x[:1], (9, 12)),
        lambda x: x.reshape(3, 2, 12).transpose(1, 0, 2),
    ],
)
def test_strided_and_read_only_operands_give_the_same_numbers(view):
    x = view(np.random.default_rng(2).standard_normal((6, 12)).astype("f"))
    other = np.ones(x.shape, "f") * 2
    _check(_body(lambda b, v, w: b.op("mul", v, w), "float32", "float32"), [x, other], 0)


def test_an_output_may_be_the_memory_of_an_input():
    def momentum(b, w, m, g):
        m2 = b.op("add", b.op("mul", m, 0.9), g)
        return b.op("sub", w, b.op("mul", m2, 0.1)), m2

    body = _body(momentum, *["float32"] * 3)
    random = np.random.default_rng(3)
    for shape in [(9,), (1000, 77)]:
        w, m, g = (random.standard_normal(shape).astype("f") for _ in range(3))
        fresh = [np.empty_like(w), np.empty_like(m)]
        FusedElementwise(body)([w, m, g], fresh)
        FusedElementwise(body)([w, m, g], [w, m])
        np.testing.assert_array_equal(w, fresh[0])
        np.testing.assert_array_equal(m, fresh[1])


def test_one_kernel_serves_every_shape_of_a_pattern():
    body = _body(_gelu, "float32")
    fused = FusedElementwise(body)
    random = np.random.default_rng(4)
    arrays = [random.standard_normal(shape).astype("f") for shape in [(3,), (4, 5), (2, 3, 4)]]
    for x in arrays:
        fused([x], [np.empty_like(x)])
    assert len({id(plan.kernel) for plan in fused.plans.values()}) == 1
    _check(body, [arrays[2]], 1e-6, 1e-6)


def test_an_op_without_a_form_is_refused_before_anything_runs():
    body = _body(lambda b, x: b.op("exp", x), "float32")
    body.nodes[0].inputs[0].type = TensorType("int32", ())
    with pytest.raises(UnsupportedOpError, match=r"exp.*int32"):
        FusedElementwise(body)


def test_constants_keep_every_bit():
    values = [0.1, np.inf, -np.inf, np.nan, 1e-45, 3.4e38]
    body = _body(
        lambda b, x: tuple(b.op("add", x, b.constant(np.float32(v))) for v in values), "float32"
    )
    _check(body, [np.zeros(2, "f")], 0, 0)


SCRIPT = """
import sys, numpy as np
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.kernels import codegen, compiled_work_queue, compiled_jit
from cerebras_tf.ops import Builder
g = Graph("body"); b = Builder(g)
x = g.add_input("x", TensorType("float32", ()))
g.outputs = [b.op("tanh", b.op("mul", x, 0.123))]
a = np.linspace(-1, 1, 9, dtype="f"); out = np.empty_like(a)
f = codegen.FusedElementwise(g); f([a], [out])
np.testing.assert_allclose(out, np.tanh(a * np.float32(0.123)), rtol=1e-6)
runner = compiled_work_queue._runner(next(iter(f.plans.values())).kernel, False)
print(sum(runner.entry.stats.cache_hits.values()), compiled_jit.CACHE_FOLDER)
"""


def _process(folder):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_processes_share_compiled_kernels_and_may_start_at_once(tmp_path):
    both = [_process(tmp_path), _process(tmp_path)]
    results = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    later = _process(tmp_path)
    out, errors = later.communicate()
    assert later.returncode == 0, errors
    assert out.split()[0] == "1"


def test_an_unwritable_cache_folder_warns_once_and_a_temporary_one_is_used(tmp_path):
    file = tmp_path / "file"
    file.write_text("not a folder")
    process = _process(file)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    hits, folder = out.split()
    assert hits == "0" and not os.path.exists(folder)
    assert errors.count("compiled kernels: the cache folder must be writable") == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_masks_keep_the_sign_of_zero_that_marks_them(dtype):
    w, x = (grid.ravel().astype(dtype) for grid in np.meshgrid(SPECIAL, SPECIAL))
    body = _body(lambda b, w, x: b.op("masked_like", w, x), dtype, dtype)
    out = [np.empty(w.shape, dtype)]
    FusedElementwise(body)([w, x], out)
    pruned = (w == 0) & np.signbit(w)
    np.testing.assert_array_equal(np.signbit(out[0]) & (out[0] == 0), pruned)
    np.testing.assert_array_equal(out[0][~pruned], x[~pruned])
