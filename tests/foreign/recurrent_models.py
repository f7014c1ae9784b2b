"""Small recurrent model_fns in the style of public Estimator code, by name.

Each takes (features, labels, mode) of tests.e2e.both_sides.input_fn; `ids` [4, 4] are the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.e2e.both_sides import check
from tests.e2e.public_style import regression

v1 = tf.compat.v1
Model = Callable[[Any, Any, str], Any]
MODELS: dict[str, Model] = {}
WORDS, WIDTH, TIME = 10, 5, 4


def model(function: Model) -> Model:
    """Enters a model into the table."""
    MODELS[function.__name__] = function
    return function


def embedded(features: Any) -> tuple[Any, Any]:
    """[B, T, W] embeddings of the tokens, and [B] lengths of 1 to T."""
    table = v1.get_variable("embedding", [WORDS, WIDTH], tf.float32)
    lengths = tf.cast(1 + features["ids"][:, 0] % TIME, tf.int32)
    return tf.nn.embedding_lookup(table, features["ids"]), lengths


def finished(mode: str, states: Any, labels: Any, **more: Any) -> Any:
    """A spec of a regression on [B, W] states, by Adam on clipped gradients."""
    scores = tf.squeeze(v1.layers.dense(states, 1, name="score"), -1)
    return regression(mode, scores, labels, v1.train.AdamOptimizer(0.05), **more)


def lstm_step(x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """A step of an LSTM as codes wrote it themselves."""
    with v1.variable_scope("cell", reuse=v1.AUTO_REUSE):
        z = v1.layers.dense(tf.concat([x, h], 1), 4 * WIDTH, name="gates")
    i, j, f, o = tf.split(z, 4, axis=1)
    c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
    return tf.tanh(c) * tf.sigmoid(o), c


@model
def dynamic_rnn(features: Any, labels: Any, mode: str) -> Any:
    """An LSTM with sequence lengths and dropout between the steps of training."""
    x, lengths = embedded(features)
    cell = v1.nn.rnn_cell.LSTMCell(WIDTH)
    _, state = v1.nn.dynamic_rnn(cell, x, sequence_length=lengths, dtype=tf.float32)
    return finished(mode, state.h, labels)


@model
def bidirectional_dynamic_rnn(features: Any, labels: Any, mode: str) -> Any:
    """GRUs in both directions with an average over time."""
    x, lengths = embedded(features)
    cells = [v1.nn.rnn_cell.GRUCell(WIDTH) for _ in range(2)]
    outputs, _ = v1.nn.bidirectional_dynamic_rnn(
        *cells, x, sequence_length=lengths, dtype=tf.float32
    )
    return finished(mode, tf.reduce_mean(tf.concat(outputs, -1), 1), labels)


@model
def keras_layers(features: Any, labels: Any, mode: str) -> Any:
    """A bidirectional LSTM with a mask, then a GRU."""
    x, lengths = embedded(features)
    layers = tf.keras.layers
    both = layers.Bidirectional(layers.LSTM(WIDTH, return_sequences=True))
    y = both(x, mask=tf.sequence_mask(lengths, TIME))
    return finished(mode, layers.GRU(WIDTH)(y), labels)


@model
def scan_and_map(features: Any, labels: Any, mode: str) -> Any:
    """An LSTM by tf.scan, and an attention by tf.map_fn."""
    x, _ = embedded(features)
    zeros = tf.zeros([tf.shape(x)[0], WIDTH])
    lstm_step(x[:, 0], zeros, zeros)
    h, _ = tf.scan(
        lambda state, e: lstm_step(e, *state), tf.transpose(x, [1, 0, 2]), (zeros, zeros)
    )
    states = tf.transpose(h, [1, 0, 2])
    pooled = tf.map_fn(lambda s: tf.reduce_sum(tf.nn.softmax(s, 0) * s, 0), states)
    return finished(mode, pooled, labels)


@model
def while_loop_with_an_early_end(features: Any, labels: Any, mode: str) -> Any:
    """A loop over the longest row; a branch within; a list of attention weights."""
    x, lengths = embedded(features)
    steps = tf.reduce_max(lengths)
    zeros = tf.zeros([tf.shape(x)[0], WIDTH])
    lstm_step(x[:, 0], zeros, zeros)
    inputs = tf.TensorArray(tf.float32, TIME).unstack(tf.transpose(x, [1, 0, 2]))

    def body(t: Any, h: Any, c: Any, seen: Any) -> Any:
        new_h, new_c = lstm_step(inputs.read(t), h, c)
        new_h = tf.cond(tf.equal(t % 2, 0), lambda: new_h, lambda: 0.5 * new_h)
        live = tf.expand_dims(t < lengths, 1)
        return t + 1, tf.where(live, new_h, h), tf.where(live, new_c, c), seen.write(t, new_h)

    start = [0, zeros, zeros, tf.TensorArray(tf.float32, TIME)]
    _, h, _, seen = tf.while_loop(lambda t, *_: t < steps, body, start)
    return finished(mode, h + tf.reduce_sum(seen.stack(), 0), labels)


@model
def decoder_in_predict(features: Any, labels: Any, mode: str) -> Any:
    """Teacher forcing in training; greedy decoding until the end symbol in predict."""
    x, _ = embedded(features)
    table = v1.get_variable("embedding_out", [WORDS, WIDTH], tf.float32)
    zeros = tf.zeros([tf.shape(x)[0], WIDTH])

    def logits(e: Any, h: Any, c: Any) -> Any:
        h, c = lstm_step(e, h, c)
        return tf.matmul(h, table, transpose_b=True), h, c

    logits(x[:, 0], zeros, zeros)
    if mode != tf.estimator.ModeKeys.PREDICT:
        _, h, _ = tf.scan(
            lambda state, e: logits(e, *state[1:]),
            tf.transpose(x, [1, 0, 2]),
            (tf.zeros([tf.shape(x)[0], WORDS]), zeros, zeros),
        )
        return finished(mode, h[-1], labels)
    most = 6

    def goes_on(t: Any, ended: Any, *_: Any) -> Any:
        return tf.logical_and(t < most, tf.logical_not(tf.reduce_all(ended)))

    def body(t: Any, ended: Any, word: Any, h: Any, c: Any, words: Any) -> Any:
        scores, h, c = logits(tf.nn.embedding_lookup(table, word), h, c)
        word = tf.where(ended, tf.zeros_like(word), tf.argmax(scores, -1, tf.int32))
        return t + 1, tf.logical_or(ended, tf.equal(word, 3)), word, h, c, words.write(t, word)

    ids = tf.cast(features["ids"][:, 0], tf.int32)
    start = [0, tf.zeros_like(ids, tf.bool), ids, zeros, zeros, tf.TensorArray(tf.int32, most)]
    final = tf.while_loop(goes_on, body, start)
    return finished(mode, final[3], labels, words=tf.transpose(final[5].stack()))


if __name__ == "__main__":  # with TensorFlow 2 behaviour switched off
    import sys
    from pathlib import Path

    v1.disable_v2_behavior()
    for chosen in sys.argv[2:]:
        check(MODELS[chosen], Path(sys.argv[1]) / chosen, False)
        print("SAME", chosen)
