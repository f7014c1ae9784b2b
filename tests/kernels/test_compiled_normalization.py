"""Compiled layer norm, RMS norm and softmax against the plain forms in float64."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels.half_precision import to_bfloat16
from cerebras_tf.kernels.registry import COMPILED
from tests.kernels.compare import check_compiled
from tests.tolerances import TOLERANCES

NEAR = TOLERANCES["normalization"]
RANDOM = np.random.default_rng(7)
SHAPES = [(1, 1), (3, 7), (2, 3, 33), (0, 5), (300, 1025), (129,)]


def _normal(*shape):
    return RANDOM.standard_normal(shape).astype("f")


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_and_its_gradient_equal_the_plain_ones(shape):
    x, dy, gamma, beta = _normal(*shape), _normal(*shape), _normal(shape[-1]), _normal(shape[-1])
    _, mean, rstd = check_compiled("layer_norm", [x, gamma, beta], NEAR, epsilon=1e-5)
    check_compiled("layer_norm_grad", [dy, x, gamma, mean, rstd], NEAR)


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_and_its_gradient_equal_the_plain_ones(shape):
    x, dy, other, gamma = *(_normal(*shape) for _ in range(3)), _normal(shape[-1])
    y, rstd = check_compiled("rms_norm", [x, gamma], NEAR, epsilon=1e-5)
    check_compiled("rms_norm_grad", [dy, x, gamma, rstd], NEAR)
    check_compiled("rms_norm_grad", [dy, x, gamma, rstd, other], NEAR)
    rounded = np.empty(shape, np.uint16)
    attrs = {"epsilon": 1e-5, "dtype": "bfloat16"}
    COMPILED["rms_norm"].run(x, gamma, out=(rounded, np.empty_like(rstd)), **attrs)
    np.testing.assert_array_equal(rounded, to_bfloat16(y))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_and_its_gradient_equal_the_plain_ones(name, shape):
    x, dy = _normal(*shape) * 5, _normal(*shape)
    (y,) = check_compiled(name, [x], NEAR)
    check_compiled(f"{name}_grad", [dy, y], NEAR)


def test_strided_and_read_only_operands_give_the_same_numbers():
    wide = _normal(6, 20)
    gamma = np.broadcast_to(np.float32(2), (10,))
    for x in (wide[:, ::2], wide[:, 5:15], wide.T[:10].T):
        check_compiled("layer_norm", [x, gamma, gamma], NEAR, epsilon=1e-5)
        check_compiled("softmax", [x], NEAR)


def test_nan_and_infinity_spread_over_their_row_only():
    x = _normal(3, 40)
    x[0, 3], x[1, 39] = np.nan, np.inf
    for name in ("softmax", "log_softmax"):
        out = np.empty_like(x)
        COMPILED[name].run(x, out=(out,))
        assert np.isnan(out[0]).all()
        assert np.isnan(out[1, 39])
        assert np.isfinite(out[2]).all()


def test_other_dtypes_are_left_to_the_plain_kernel():
    assert not COMPILED["softmax"].supports(np.ones((2, 2)))
    assert COMPILED["softmax"].supports(np.ones((2, 2), "f"))


def test_layer_norm_grad_does_not_depend_on_the_number_of_threads(monkeypatch):
    from cerebras_tf.kernels import compiled_threads

    dy, x, gamma = _normal(2000, 256), _normal(2000, 256), _normal(256)
    _, mean, rstd = check_compiled("layer_norm", [x, gamma, gamma], NEAR, epsilon=1e-5)
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(threads))
        out = np.empty_like(x), np.empty(256, "f"), np.empty(256, "f")
        COMPILED["layer_norm_grad"].run(dy, x, gamma, mean, rstd, out=out)
        results.append(out)
    for one, three in zip(*results):
        np.testing.assert_array_equal(one, three)
