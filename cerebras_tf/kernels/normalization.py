"""Plain kernels of norms and softmax over the last axis, of width H: the definitions."""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.registry import plain

Pair = tuple[np.ndarray, np.ndarray]
Triple = tuple[np.ndarray, np.ndarray, np.ndarray]


@plain("layer_norm")
def layer_norm(x, gamma, beta, *, epsilon):
    """y = (x - mean) / sqrt(variance + epsilon) gamma + beta (Ba et al., 2016, eq. 4).

    Args:
        x: [..., H].
        gamma: [H].
        beta: [H].
        epsilon: added to the variance, the mean of squares (without Bessel's correction).

    Returns:
        y [..., H], mean [...], and 1 / sqrt(variance + epsilon) [...].
    """
    mean = x.mean(axis=-1, keepdims=True)
    variance = np.square(x - mean).mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    return (x - mean) * rstd * gamma + beta, mean[..., 0], rstd[..., 0]


@plain("layer_norm_grad")
def layer_norm_grad(dy, x, gamma, mean, rstd):
    """Derivatives of layer_norm's y: dx [..., H], dgamma [H], dbeta [H].

    Args are the cotangent dy [..., H], x and gamma as given to layer_norm, and its results mean and
    rstd.
    """
    normal = (x - mean[..., None]) * rstd[..., None]
    g = dy * gamma
    along = (g * normal).mean(axis=-1, keepdims=True)
    dx = (g - g.mean(axis=-1, keepdims=True) - normal * along) * rstd[..., None]
    rows = tuple(range(x.ndim - 1))
    return dx, (dy * normal).sum(axis=rows), dy.sum(axis=rows)


@plain("rms_norm")
def rms_norm(x, gamma, *, epsilon, dtype=None):
    """y = x / sqrt(mean(x^2) + epsilon) gamma (Zhang and Sennrich, 2019, eq. 4).

    Args:
        x: [..., H].
        gamma: [H].
        epsilon: added to the mean of squares.
        dtype: that the caller stores y in.

    Returns:
        y [..., H], and 1 / sqrt(mean(x^2) + epsilon) [...].
    """
    mean = np.square(x).mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(mean + x.dtype.type(epsilon))
    return x * rstd * gamma, rstd[..., 0]


@plain("rms_norm_grad")
def rms_norm_grad(dy, x, gamma, rstd, other=None):
    """Derivatives of rms_norm's y: dx [..., H] and dgamma [H].

    Args are the cotangent dy [..., H], x and gamma as given to rms_norm, its result rstd, and a
    cotangent of x [..., H] by another path, which is added to dx.
    """
    normal = x * rstd[..., None]
    g = dy * gamma
    along = (g * normal).mean(axis=-1, keepdims=True)
    dx = (g - normal * along) * rstd[..., None]
    dgamma = (dy * normal).sum(axis=tuple(range(x.ndim - 1)))
    return dx if other is None else dx + other, dgamma


@plain("softmax")
def softmax(x):
    """e^x / sum(e^x) along the last axis of [..., H]."""
    e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=-1, keepdims=True)


@plain("softmax_grad")
def softmax_grad(dy, y):
    """dx = y (dy - sum(dy y)) for y = softmax(x)."""
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


@plain("log_softmax")
def log_softmax(x):
    """x - log(sum(e^x)) along the last axis of [..., H]."""
    shifted = x - x.max(axis=-1, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@plain("log_softmax_grad")
def log_softmax_grad(dy, y):
    """dx = dy - e^y sum(dy) for y = log_softmax(x)."""
    return dy - np.exp(y) * dy.sum(axis=-1, keepdims=True)
