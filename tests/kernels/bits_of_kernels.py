"""Prints digests of what kernels compute on one thread and on two; see test_cold_and_warm.

Arguments: the kernels to run, since compiling all of them takes half a minute.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from cerebras_tf.kernels import compiled_attention, compiled_linear_cross_entropy, compiled_threads
from cerebras_tf.kernels import compiled_normalization as normalization

CHOSEN = sys.argv[1:]
compiled_threads._pool = compiled_threads._Pool(2)
random = np.random.default_rng(0)


def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)


def show(name, *arrays):
    print(name, *(hashlib.sha256(array.tobytes()).hexdigest()[:12] for array in arrays))


for rows, width in ((128, 64), (3000, 133)):  # on one thread, and on two
    x, dy, gamma, beta = normal(rows, width), normal(rows, width), normal(width), normal(width)
    y, mean, rstd = np.empty_like(x), np.empty(rows, "f"), np.empty(rows, "f")
    normalization.layer_norm(x, gamma, beta, epsilon=1e-5, out=(y, mean, rstd))
    dx, dgamma, dbeta = np.empty_like(x), np.empty(width, "f"), np.empty(width, "f")
    normalization.layer_norm_grad(dy, x, gamma, mean, rstd, out=(dx, dgamma, dbeta))
    show("layer_norm", y, mean, rstd, dx, dgamma, dbeta)
    if "linear_softmax_xent_train" not in CHOSEN:
        continue
    weight, labels = normal(width, 70), np.arange(rows) % 70
    loss, dh, dweight = np.empty(rows, "f"), np.empty_like(x), np.empty_like(weight)
    compiled_linear_cross_entropy.linear_softmax_xent_train(
        dy[:, 0].copy(), x, weight, labels, out=(loss, dh, dweight), transpose_weight=False
    )
    show("linear_softmax_xent_train", loss, dh, dweight)
for length in (16, 200) if "attention" in CHOSEN else ():
    q, k, v = (normal(2, length, 4, 16) for _ in range(3))
    out, lse = np.empty_like(q), np.empty((2, 4, length), "f")
    compiled_attention.attention(q, k, v, out=(out, lse), scale=0.25, causal=True)
    found = tuple(np.empty_like(q) for _ in range(3))
    compiled_attention.attention_grad(
        normal(*q.shape), q, k, v, out, lse, out=found, scale=0.25, causal=True
    )
    show("attention", out, lse, *found)
