"""Parity of Fourier transforms and complex arithmetic with TensorFlow, in float64."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, normal

pytestmark = pytest.mark.tf

IMAGE = normal(2, 4, 6).astype(np.float64)
OTHER = normal(2, 4, 6, seed=1).astype(np.float64)
WEIGHTS = normal(6, 3).astype(np.float64)


def parts(*tensors):
    return [part(x) for x in tensors for part in (tf.math.real, tf.math.imag)]


def arithmetic(x):
    z, w = tf.complex(x[0], x[1]), tf.complex(x[1][:1], x[0][:1])
    product = tf.einsum("bij,bkj->bik", z, tf.math.conj(z))
    return [
        *parts(z * w, z / w, tf.exp(z), tf.square(z) - tf.cast(2.0, z.dtype), 1 / z),
        *parts(tf.matmul(z, w, adjoint_b=True), product, tf.transpose(z, conjugate=True)),
        *parts(tf.reduce_mean(z, 1), tf.concat([z, w], 0)[:, ::2], tf.zeros_like(z) + z),
        *(tf.abs(z), tf.math.angle(z), tf.cast(z, tf.float32), tf.abs(z - z)),
    ]


ROWS = {
    "fft": lambda x: parts(tf.signal.fft(tf.complex(*x)), tf.signal.ifft(tf.complex(*x))),
    "fft2d": lambda x: parts(tf.signal.fft2d(tf.complex(*x)), tf.signal.ifft2d(tf.complex(*x))),
    "rfft": lambda x: parts(tf.signal.rfft(x[0]), tf.signal.rfft(x[1][..., :5])),
    "rfft2d": lambda x: parts(tf.signal.rfft2d(x[0]), tf.signal.rfft2d(x[1][..., :5])),
    "irfft": lambda x: [tf.signal.irfft(tf.complex(*x), [n]) for n in (10, 11)],
    "irfft2d": lambda x: [tf.signal.irfft2d(tf.complex(*x), [4, n]) for n in (10, 11)],
    "dct": lambda x: [tf.signal.dct(x[0], norm="ortho"), tf.signal.idct(x[1])],
    "stft": lambda x: tf.abs(tf.signal.stft(tf.reshape(x[0], [2, 24]), 8, 4)),
    "arithmetic": arithmetic,
}


@pytest.mark.parametrize("name", ROWS)
def test_complex_op_agrees_with_tensorflow(name):
    """TensorFlow differentiates in float64, except casts to float32."""
    check_parity(ROWS[name], [IMAGE, OTHER], "float64")


def test_transforms_that_cut_or_pad_agree_with_tensorflow():
    """Without gradients: TensorFlow's are wrong or fail there."""

    def build(x):
        z = tf.complex(*x)
        real = [tf.signal.irfft(z, [8]), tf.signal.irfft(z, [15]), tf.signal.irfft2d(z, [3, 7])]
        cut, padded = tf.signal.rfft(x[0], [4]), tf.signal.rfft2d(x[0], [5, 9])
        return [*real, *parts(cut, padded)]

    check_parity(build, [IMAGE, OTHER], "float64", gradient=False)


def test_a_filter_of_weights_in_the_spectrum_agrees_with_tensorflow():
    """FNet, and filters learned in the frequency domain."""

    def build(x):
        mixed = tf.math.real(tf.signal.fft2d(tf.cast(x[0], tf.complex128)))
        spectrum = tf.einsum("bij,jk->bik", tf.complex(x[0], mixed), tf.complex(x[2], x[2] + 1))
        return tf.signal.irfft(spectrum * tf.complex(x[1][..., :3], 0.0 * x[1][..., :3]), [4])

    check_parity(build, [IMAGE, OTHER, WEIGHTS], "float64")
