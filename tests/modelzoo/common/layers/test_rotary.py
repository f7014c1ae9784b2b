"""Tests of modelzoo/common/layers/rotary.py: against complex numbers and against Hugging Face."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.layers.rotary import Rotary

B, H, S, D = 2, 3, 7, 12


def heads(dtype=np.float32):
    return np.random.default_rng(0).normal(size=(B, H, S, D)).astype(dtype)


def turned(x, rotary_dim, positions, known_length=True):
    """x turned by a Rotary; the length of the sequence may be unknown to the graph."""
    with tf.Graph().as_default(), tf.Session() as session:
        length = x.shape[2] if known_length else None
        given = tf.placeholder(x.dtype, [None, x.shape[1], length, x.shape[3]])
        rotary = Rotary(x.shape[3], rotary_dim, tf.constant(positions, tf.int32), given.dtype)
        return session.run(rotary.rotate(given), {given: x})


def complex_oracle(x, rotary_dim, positions):
    """(a + ib) e^{ipw} in float64, for each pair (a, b) of the first `rotary_dim` features."""
    x = x.astype(np.float64)
    pairs = x[..., 0:rotary_dim:2] + 1j * x[..., 1:rotary_dim:2]
    rates = 10000.0 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    angles = np.asarray(positions)[:, None, :, None] * rates
    pairs = pairs * np.exp(1j * angles)
    both = np.stack([pairs.real, pairs.imag], axis=-1)
    return np.concatenate([both.reshape(*x.shape[:-1], -1), x[..., rotary_dim:]], axis=-1)


@pytest.mark.parametrize("known_length", [True, False])
@pytest.mark.parametrize("rotary_dim", [4, D])
def test_turning_is_a_product_of_complex_numbers(rotary_dim, known_length):
    positions = [[*range(S)], [*range(40, 40 + S)]]
    found = turned(heads(), rotary_dim, positions, known_length)
    expected = complex_oracle(heads(), rotary_dim, positions)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def test_turning_equals_that_of_hugging_face():
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    sines = modeling.create_sinusoidal_positions(S, 8)[None]
    sin, cos = torch.split(sines, 4, dim=-1)
    x = torch.tensor(heads()[..., :8]).permute(0, 2, 1, 3)
    expected = modeling.apply_rotary_pos_emb(x, sin, cos).permute(0, 2, 1, 3).numpy()
    found = turned(heads(), 8, [list(range(S))])
    np.testing.assert_allclose(found[..., :8], expected, rtol=1e-5, atol=1e-6)


def test_angles_of_half_precision_are_float32():
    """float16 holds only even positions here, whose sines would be off by up to 1."""
    positions = [[4095, 4093, 3001]]
    x = heads(np.float16)[:1, :, :3]
    found = turned(x, D, positions)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, complex_oracle(x, D, positions), atol=8e-3)
