"""What the models' formulas share, in NumPy and float64, and runs of model_fns. Holds no tests."""

from __future__ import annotations

import math

import numpy as np
import tensorflow.compat.v1 as tf

TRAIN, EVAL, PREDICT = (
    tf.estimator.ModeKeys.TRAIN,
    tf.estimator.ModeKeys.EVAL,
    tf.estimator.ModeKeys.PREDICT,
)


def run(model_fn, tree, mode, features, labels, metrics=False, vectors=False):
    """Runs a model_fn once.

    Args:
        model_fn: of a model.
        tree: its params.
        mode: of ModeKeys.
        features: arrays by name.
        labels: an array.
        metrics: whether to return the metrics, by name, instead of the loss.
        vectors: whether vectors, which start as zeros and ones, get random values.

    Returns:
        The loss, or in PREDICT the predictions, and the variables by name.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        fed = {name: tf.constant(value) for name, value in features.items()}
        spec = model_fn(fed, tf.constant(labels), mode, tree)
        wanted = spec.predictions if mode == PREDICT else spec.loss
        if metrics:
            function, tensors = spec.host_call
            wanted = {name: pair[1] for name, pair in function(*tensors).items()}
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        if vectors:
            draw([v for v in tf.trainable_variables() if v.shape.rank == 1], session)
        return session.run([wanted, {v.op.name: v for v in tf.trainable_variables()}])


def draw(variables, session):
    """Adds random numbers to variables and returns their values by name."""
    rng = np.random.default_rng(2)
    values = [x + rng.normal(0, 0.3, x.shape).astype("f") for x in session.run(variables)]
    # In one run: each run of another operation prepares the whole graph again.
    feeds = {v.initializer.inputs[1]: value for v, value in zip(variables, values)}
    session.run([v.initializer for v in variables], feeds)
    return {v.op.name: value for v, value in zip(variables, values)}


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def taken(log_probs, labels):
    """The log-probability of each label."""
    return np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]


def later(length):
    """Where a query [S] must not see a key [S]: the tokens after it."""
    return np.triu(np.ones((length, length), bool), 1)


def numbered(name, number):
    """The name of the n-th layer of a kind, the first of which has no number."""
    return f"{name}_{number}" if number else name


class Oracle:
    """Layers of a model from its variables by name.

    Args:
        values: arrays by name.
        heads: of each attention.
    """

    def __init__(self, values, heads):
        self.values = {name: value.astype(np.float64) for name, value in values.items()}
        self.heads = heads

    def _of(self, name, part):
        return self.values.get(f"{name}/{name.split('/')[-1]}/{part}", 0.0)

    def dense(self, x, name):
        return x @ self._of(name, "kernel") + self._of(name, "bias")

    def norm(self, x, name):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + 1e-5)
        return scaled * self._of(name, "gamma") + self._of(name, "beta")

    def attend(self, x, name, hidden, memory=None, share=1.0, turn=None, short=False):
        """Attention of x [B, S, N] to a memory, by default itself.

        Args:
            x: the input.
            name: of the layer.
            hidden: [B or 1, S, M], true where a key is not seen.
            memory: [B, M, N].
            share: by which scores are multiplied.
            turn: a rotation of queries and keys [B, S, H, D].
            short: whether the projections have GPT-J's names.
        """
        end, output = ("proj", "out_proj") if short else ("projection", "output_transform")
        sides = {"q": x, "k": x if memory is None else memory, "v": x if memory is None else memory}
        q, k, v = (
            self.dense(side, f"{name}/{kind}_{end}").reshape(*side.shape[:2], self.heads, -1)
            for kind, side in sides.items()
        )
        if turn is not None:
            q, k = turn(q), turn(k)
        scores = np.einsum("bshd,bthd->bhst", q, k) / math.sqrt(q.shape[-1]) * share
        chances = np.exp(log_softmax(scores - 1e4 * hidden[:, None]))
        return self.dense(
            np.einsum("bhst,bthd->bshd", chances, v).reshape(x.shape), f"{name}/{output}"
        )
