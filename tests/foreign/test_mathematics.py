"""Models with much mathematics: Gaussian processes, variational inference, spectra."""

from __future__ import annotations

import math

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.e2e.both_sides import check
from tests.foreign.inputs import inputs, normal, spec, v1, variable

pytestmark = pytest.mark.tf

POINTS = {"x": normal(8, 6), "wave": normal(8, 32)}
TARGETS = {"y": normal(8), "count": np.arange(8).astype("float32"), "share": (np.arange(8) + 1) / 9}
TARGETS["share"] = TARGETS["share"].astype("float32")


def dense(x, units, name, **options):
    start = v1.random_normal_initializer(stddev=0.3, seed=len(name))
    return v1.layers.dense(x, units, name=name, kernel_initializer=start, **options)


def gaussian_process(features, labels, mode):
    """The marginal likelihood by a Cholesky factor and a triangular solution."""
    x = features["x"] * tf.exp(variable("scales", [6]))
    squares = tf.reduce_sum(tf.square(x[:, None] - x[None]), -1)
    kernel = tf.exp(-0.5 * squares) + 0.1 * tf.eye(4)
    factor = tf.linalg.cholesky(kernel)

    def loss():
        alpha = tf.linalg.triangular_solve(factor, labels["y"][:, None])
        logdet = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
        return 0.5 * tf.reduce_sum(tf.square(alpha)) + logdet + 2 * math.log(2 * math.pi)

    mean = tf.matmul(kernel, tf.linalg.cholesky_solve(factor, tf.reduce_sum(x, 1)[:, None]))
    return spec(mode, loss, mean=mean[:, 0])


def sparse_gaussian_process(features, labels, mode):
    """Inducing points, Woodbury's identity with determinant, inverse and solution."""
    points = variable("points", [3, 6], 1.0)
    x = features["x"]

    def kernel(a, b):
        return tf.exp(-0.1 * tf.reduce_sum(tf.square(a[:, None] - b[None]), -1))

    inner = kernel(points, points) + 0.01 * tf.eye(3)
    cross = kernel(points, x)
    low = tf.matmul(cross, tf.linalg.solve(inner, cross), transpose_a=True) + 0.5 * tf.eye(4)

    def loss():
        y = labels["y"][:, None]
        _, logdet = tf.linalg.slogdet(low)
        return tf.reduce_sum(y * tf.matmul(tf.linalg.inv(low), y)) + logdet + tf.linalg.det(inner)

    return spec(mode, loss, low=low)


def ridge_head(features, labels, mode):
    """A least squares head on learned features, as in meta-learning."""
    hidden = dense(features["x"], 3, "hidden", activation=tf.tanh)
    basis, _ = tf.linalg.qr(tf.concat([hidden, tf.ones([4, 1])], 1)[:, :3])

    def loss():
        y = labels["y"][:, None]
        solved = tf.linalg.lstsq(hidden, y, l2_regularizer=0.1)
        explained = tf.square(tf.matmul(basis, y, transpose_a=True))
        return tf.reduce_mean(tf.square(tf.matmul(hidden, solved) - y)) - tf.reduce_sum(explained)

    return spec(mode, loss, hidden=hidden)


def whitening(features, labels, mode):
    """Decorrelated features by eigenvalues, and a nuclear norm by singular values."""
    hidden = dense(features["x"], 3, "hidden")
    centered = hidden - tf.reduce_mean(hidden, 0)
    covariance = tf.matmul(centered, centered, transpose_a=True) / 4 + 0.1 * tf.eye(3)
    values, vectors = tf.linalg.eigh(covariance)
    root = tf.matmul(vectors / tf.sqrt(values), vectors, transpose_b=True)
    white = tf.matmul(centered, root)
    scores = tf.reduce_sum(dense(white, 2, "scores"), -1)

    def loss():
        nuclear = tf.reduce_sum(tf.linalg.svd(hidden, compute_uv=False))
        return tf.reduce_mean(tf.square(scores - labels["y"])) + 0.1 * nuclear

    return spec(mode, loss, white=white)


def gamma_and_beta(features, labels, mode):
    """Negative binomial, gamma and beta regression: their likelihoods by lgamma and digamma."""
    a, b, r = tf.unstack(tf.nn.softplus(dense(features["x"], 3, "heads")) + 0.1, axis=1)

    def loss():
        n, share = labels["count"], labels["share"]
        chance = tf.sigmoid(tf.reduce_sum(features["x"], 1) * variable("slope", []))
        counts = tf.math.lgamma(n + r) - tf.math.lgamma(r) - tf.math.lgamma(n + 1)
        counts += r * tf.math.log1p(-chance) + tf.math.xlogy(n, chance)
        beta = (a - 1) * tf.math.log(share) + (b - 1) * tf.math.log1p(-share)
        beta -= tf.math.lbeta(tf.stack([a, b], -1))
        entropy = tf.math.lbeta(tf.stack([a, b], -1)) - (a - 1) * tf.math.digamma(a)
        return -tf.reduce_mean(counts + beta) + 0.01 * tf.reduce_mean(entropy)

    return spec(mode, loss, mean=a / (a + b))


def survival(features, labels, mode):
    """Censored gamma and normal times: distribution functions and their inverses."""
    a = tf.nn.softplus(dense(features["x"], 1, "shape")[:, 0]) + 0.5
    z = dense(features["x"], 1, "place")[:, 0]

    def loss():
        x = labels["share"] * 3
        alive = tf.math.log(tf.math.igammac(tf.stop_gradient(a), x * tf.exp(z)) + 1e-6)
        gradient = tf.math.igamma(a, x)
        tail = tf.math.log(tf.math.erfc(z / math.sqrt(2)) / 2)
        place = tf.square(tf.math.ndtri(0.9 * tf.sigmoid(z) + 0.05))
        inside = tf.math.betainc(a * 0 + 1.5, a * 0 + 2.0, tf.sigmoid(z))
        found = tf.math.erfinv(0.9 * tf.tanh(z))
        return tf.reduce_mean(gradient - alive - 0.1 * tail + place + inside + found)

    return spec(mode, loss, shape=a)


def von_mises(features, labels, mode):
    """Angles by a Bessel function, and the divergence of its concentration."""
    angle, raw = tf.unstack(dense(features["x"], 2, "heads"), axis=1)
    concentration = tf.nn.softplus(raw)

    def loss():
        fit = concentration * tf.cos(labels["y"] - angle)
        log_i0 = tf.math.log(tf.math.bessel_i0e(concentration)) + concentration
        ratio = tf.math.bessel_i1e(concentration) / tf.math.bessel_i0e(concentration)
        return tf.reduce_mean(log_i0 - fit + 0.1 * ratio)

    return spec(mode, loss, angle=angle)


def variational_autoencoder(features, labels, mode):
    """Full covariance by a filled triangle, a flow with its determinant, and divergences."""
    hidden = dense(features["x"], 5, "hidden", activation=tf.nn.elu)
    mean = dense(hidden, 2, "mean")
    raw = tf.reshape(dense(hidden, 4, "raw"), [4, 2, 2])
    lower = tf.linalg.band_part(raw, -1, 0)
    lower = tf.linalg.set_diag(lower, tf.nn.softplus(tf.linalg.diag_part(raw)) + 0.1)
    noise = tf.random.normal([4, 2], seed=3)
    z = mean + tf.linalg.matvec(lower, noise)
    u, w = variable("u", [2]), variable("w", [2])
    bent = tf.tanh(tf.reduce_sum(z * w, -1))
    flowed = z + u * bent[:, None]
    slope = (1 - tf.square(bent))[:, None] * w
    volume = tf.math.log(tf.abs(1 + tf.reduce_sum(slope * u, -1)) + 1e-6)
    decoded = dense(flowed, 6, "decoded")

    def loss():
        scale = tf.matmul(lower, lower, transpose_b=True)
        kl = 0.5 * (tf.linalg.trace(scale) + tf.reduce_sum(tf.square(mean), 1) - 2)
        kl -= tf.reduce_sum(tf.math.log(tf.linalg.diag_part(lower)), 1)
        fit = tf.reduce_sum(tf.square(decoded - features["x"]), 1)
        return tf.reduce_mean(fit + kl - volume) + tf.reduce_logsumexp(decoded) * 0.01

    return spec(mode, loss, mean=mean)


def fourier_mixing(features, labels, mode):
    """FNet: a transform over tokens and channels instead of attention."""
    x = tf.reshape(dense(features["wave"], 32, "tokens"), [4, 8, 4])
    mixed = tf.math.real(tf.signal.fft2d(tf.cast(x, tf.complex64)))
    x = x + 0.1 * mixed
    scores = dense(tf.reduce_mean(tf.nn.gelu(x), 1), 1, "scores")[:, 0]

    def loss():
        return tf.reduce_mean(tf.square(scores - labels["y"]))

    return spec(mode, loss, scores=scores)


def spectral_loss(features, labels, mode):
    """Magnitudes of short transforms at two sizes, mel filters and cepstra."""
    made = dense(features["wave"], 32, "made")

    def magnitude(x, size):
        return tf.abs(tf.signal.stft(x, size, size // 2)) + 0.1

    def loss():
        total = 0.0
        for size in (8, 16):
            real, fake = magnitude(features["wave"], size), magnitude(made, size)
            total += tf.reduce_mean(tf.square(real - fake))
            total += tf.reduce_mean(tf.square(tf.math.log(real / fake)))
        mel = tf.signal.linear_to_mel_weight_matrix(6, 9, 16000)
        logs = tf.math.log(tf.tensordot(magnitude(made, 16), mel, 1) + 1e-2)
        return total + 0.1 * tf.reduce_mean(
            tf.square(tf.signal.mfccs_from_log_mel_spectrograms(logs))
        )

    return spec(mode, loss, made=made)


def fourier_operator(features, labels, mode):
    """A neural operator: complex weights on the low modes, transformed back."""
    x = tf.reshape(dense(features["wave"], 32, "lift"), [4, 2, 16])
    modes = tf.signal.rfft(x)[..., :4]
    weight = tf.complex(variable("real", [2, 2, 4]), variable("imaginary", [2, 2, 4]))
    mixed = tf.einsum("bim,iom->bom", modes, weight)
    back = tf.signal.irfft(tf.pad(mixed, [[0, 0], [0, 0], [0, 5]]))
    scores = tf.reduce_mean(tf.nn.gelu(back + x), [1, 2])

    def loss():
        return tf.reduce_mean(tf.square(scores - labels["y"]))

    return spec(mode, loss, scores=scores)


def circular_products(features, labels, mode):
    """Holographic embeddings: a correlation as a product of spectra; rotations by phases."""
    a, b = dense(features["x"], 8, "first"), dense(features["x"], 8, "second")
    spectrum = tf.math.conj(tf.signal.fft(tf.complex(a, 0.0 * a))) * tf.signal.fft(
        tf.cast(b, "complex64")
    )
    joined = tf.math.real(tf.signal.ifft(spectrum))
    turned = tf.complex(a[:, :4], a[:, 4:]) * tf.exp(tf.complex(0.0, variable("phase", [4])))
    scores = tf.reduce_mean(joined, 1) - tf.reduce_mean(tf.abs(turned), 1)

    def loss():
        return tf.reduce_mean(tf.square(scores - labels["y"]))

    return spec(mode, loss, scores=scores)


MODELS = [
    gaussian_process, sparse_gaussian_process, ridge_head, whitening, gamma_and_beta, survival,
    von_mises, variational_autoencoder, fourier_mixing, spectral_loss, fourier_operator,
    circular_products,
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_mathematical_model_does_on_the_wafer_as_on_the_host(model, tmp_path):
    check(model, tmp_path, inputs=inputs(POINTS, TARGETS))
