"""Half precision kept: every op rounds its result once, to nearest even, as ml_dtypes does."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.kernels.half_precision import as_float32, from_float32
from tests.machines import run_program
from tests.steps import StepBuilder

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def result(build, x, dtype):
    """The result of a step of one feature, in half precision, as float32."""
    s = StepBuilder()
    y = build(s.b, s.feature("x", *x.shape, dtype=dtype))
    step = s.done(y=y)
    program = compile_step(step, Options(precision="emulate"))
    results, _ = run_program(program, step, {}, [{"x": from_float32(x, dtype)}])
    return as_float32(results["y"], dtype)


def numbers():
    random = np.random.default_rng(0)
    return (random.standard_normal((40, 50)) * 10.0 ** random.integers(-6, 5, (40, 50))).astype("f")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_chains_of_operations_are_those_of_ml_dtypes_bit_for_bit(dtype):
    def chain(b, x):
        y = b.op("mul", b.op("add", x, x), b.op("sub", x, b.op("mul", x, 0.3)))
        return b.op("div", b.op("sqrt", b.op("abs", y)), b.op("add", b.op("abs", x), 0.7))

    def expected(x):
        with np.errstate(over="ignore"):
            y = (x + x) * (x - x * kind(0.3))
            return np.sqrt(np.abs(y)) / (np.abs(x) + kind(0.7))

    kind = NUMPY[dtype]
    found = result(chain, numbers(), dtype)
    wanted = expected(numbers().astype(kind)).astype(np.float32)
    np.testing.assert_array_equal(found, wanted)
    if dtype == "float16":
        assert np.isinf(found).any() and np.isfinite(found).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_and_products_are_rounded_once(dtype):
    x = (numbers() % 1).astype(NUMPY[dtype]).astype(np.float32)
    total = result(lambda b, x: b.op("sum", x, axes=(1,), keepdims=False), x, dtype)
    wanted = x.sum(axis=1, dtype=np.float64).astype(NUMPY[dtype]).astype(np.float32)
    np.testing.assert_array_equal(total, wanted)
    product = result(
        lambda b, x: b.op("matmul", x, x, transpose_a=False, transpose_b=True), x, dtype
    )
    wanted = (x.astype(np.float64) @ x.T.astype(np.float64)).astype(NUMPY[dtype])
    assert (product != wanted.astype(np.float32)).mean() < 2e-3  # ties decided by float32's sum
    np.testing.assert_allclose(product, wanted.astype(np.float32), rtol=2.0**-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cast_there_and_back_rounds(dtype):
    s = StepBuilder()
    half = s.b.op("cast", s.feature("x", 2000), dtype=dtype)
    step = s.done(y=s.b.op("cast", half, dtype="float32"))
    x = numbers().ravel()
    results, _ = run_program(compile_step(step, Options(precision="emulate")), step, {}, [{"x": x}])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(results["y"], x.astype(NUMPY[dtype]).astype(np.float32))
