"""Padding left out of models that other authors could have written: the host's numbers, on batches
whose padding holds anything."""

from __future__ import annotations

import logging
import re

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.errors import BatchCapacityError, ConfigError
from tests.e2e.host_and_wafer import Run, assert_same_run, batches, estimator, train

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 6, 12, 16, 2, 40
PAD = VOCABULARY + 1


def dense(x, width, name, activation=None):
    return v1.layers.dense(x, width, activation, name=name)


def attention_mask(real):
    """[B, S, S]: every query sees the tokens whose number is 1."""
    wide = tf.cast(tf.reshape(real, [BATCH, 1, LENGTH]), tf.float32)
    return tf.ones([BATCH, LENGTH, 1], tf.float32) * wide


def attend(x, mask, name, rate):
    """Heads of flattened tokens; the mask is added as (1 - mask) * -10000."""
    with v1.variable_scope(name):
        q, k, v = (
            tf.transpose(
                tf.reshape(dense(x, WIDTH, part), [BATCH, LENGTH, HEADS, WIDTH // HEADS]),
                [0, 2, 1, 3],
            )
            for part in ("query", "key", "value")
        )
        scores = tf.matmul(q, k, transpose_b=True) * (WIDTH // HEADS) ** -0.5
        scores += (1.0 - tf.expand_dims(mask, 1)) * -10000.0
        weights = tf.nn.dropout(tf.nn.softmax(scores), rate=rate, seed=3)
        heads = tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3])
        return dense(tf.reshape(heads, [BATCH * LENGTH, WIDTH]), WIDTH, "output")


def normalized(x, name):
    with v1.variable_scope(name):
        scale = v1.get_variable("scale", [WIDTH], initializer=v1.ones_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-6) * scale


def encoder(features, rate=0.1, layers=2):
    """Hidden states [B S, H]; tokens with the id PAD have embeddings of 0."""
    table = v1.get_variable("words", [VOCABULARY, WIDTH])
    pad = tf.equal(features["ids"], PAD)
    ids = tf.where(pad, tf.zeros_like(features["ids"]), features["ids"])
    x = tf.nn.embedding_lookup(table, tf.reshape(ids, [-1]))
    x = tf.reshape(x, [BATCH, LENGTH, WIDTH])
    x = tf.where(tf.expand_dims(pad, -1), tf.zeros_like(x), x)
    segments = v1.get_variable("segments", [2, WIDTH])
    one_hot = tf.one_hot(tf.reshape(features["segments"], [-1]), 2)
    x += tf.reshape(tf.matmul(one_hot, segments), [BATCH, LENGTH, WIDTH])
    positions = v1.get_variable("positions", [LENGTH + 3, WIDTH])
    x += tf.reshape(tf.slice(positions, [0, 0], [LENGTH, -1]), [1, LENGTH, WIDTH])
    x = tf.nn.dropout(normalized(x, "norm"), rate=rate, seed=5)
    x = tf.reshape(x, [BATCH * LENGTH, WIDTH])
    mask = attention_mask(features["real"])
    for layer in range(layers):
        name = f"layer_{layer}"
        added = tf.nn.dropout(attend(x, mask, name, rate), rate=rate, seed=7 + layer)
        x = normalized(x + added, f"{name}/norm_1")
        inner = dense(x, 2 * WIDTH, f"{name}/inner", tf.nn.gelu)
        x = normalized(x + dense(inner, WIDTH, f"{name}/outer"), f"{name}/norm_2")
    return x


def spec_of(mode, loss, predictions):
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        step = v1.train.get_global_step()
        train_op = v1.train.AdamOptimizer(2e-3).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)


def classifier(features, labels, mode, params):
    """A sentence's class by its first token."""
    x = encoder(features, 0.1 if mode == tf.estimator.ModeKeys.TRAIN else 0.0)
    first = tf.squeeze(tf.reshape(x, [BATCH, LENGTH, WIDTH])[:, 0:1, :], axis=1)
    logits = dense(dense(first, WIDTH, "pooler", tf.tanh), 3, "classes")
    predictions = {"probabilities": tf.nn.softmax(logits)}
    loss = None
    if labels is not None:
        wanted = tf.one_hot(labels % 3, 3)
        losses = -tf.reduce_sum(wanted * tf.nn.log_softmax(logits), axis=-1)
        loss = tf.reduce_mean(losses)
    return spec_of(mode, loss, predictions)


def masked_words(features, labels, mode, params):
    """Words at positions that the data names, by flat positions."""
    x = encoder(features, layers=1)
    firsts = tf.reshape(tf.range(BATCH) * LENGTH, [-1, 1])
    at = tf.reshape(features["at"] + firsts, [-1])
    rows = normalized(dense(tf.gather(x, at), WIDTH, "transform", tf.nn.gelu), "norm_out")
    with v1.variable_scope("", reuse=True):
        table = v1.get_variable("words")
    logits = tf.matmul(rows, table, transpose_b=True)
    logits = tf.reshape(logits, [BATCH, -1, VOCABULARY])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(features["words"], logits)
    weights = features["counts"]
    loss = tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + 1e-5)
    return spec_of(mode, loss, {})


def mean_pooling(features, labels, mode, params):
    """Reads padding: a mean over all positions."""
    x = tf.reshape(encoder(features, layers=1), [BATCH, LENGTH, WIDTH])
    logits = dense(tf.reduce_mean(x, axis=1), 3, "classes")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels % 3, logits))
    return spec_of(mode, loss, {})


def chosen_scores(features, labels, mode, params):
    """Attention whose mask chooses among scores, instead of being added to them."""
    table = v1.get_variable("words", [VOCABULARY, WIDTH])
    x = tf.nn.embedding_lookup(table, features["ids"])
    hidden = tf.reshape(tf.equal(features["real"], 0), [BATCH, 1, LENGTH])
    scores = tf.where(hidden, -1e9, tf.matmul(dense(x, WIDTH, "query"), x, transpose_b=True))
    x += tf.matmul(tf.nn.softmax(scores), x)
    loss = tf.reduce_mean(tf.square(dense(x[:, 0], 1, "out")))
    return spec_of(mode, loss, {})


def smooth_classifier(features, labels, mode, params):
    """A penalty on a gradient after a softmax, which only TensorFlow's own gradients know."""
    first = tf.reshape(encoder(features, 0.0, layers=1), [BATCH, LENGTH, WIDTH])[:, 0]
    weight = v1.get_variable("classes", [WIDTH, 3])
    chance = tf.nn.softmax(tf.matmul(first, weight))
    slope = tf.gradients(tf.reduce_sum(chance[:, 0]), weight)[0]
    return spec_of(mode, tf.reduce_mean(tf.square(slope)) + tf.reduce_mean(chance[:, 1]), {})


def language_model(features, labels, mode, params):
    """The next word, of real ones: padding is known by weights of the loss alone."""
    table = v1.get_variable("words", [VOCABULARY, WIDTH])
    x = tf.nn.embedding_lookup(table, features["ids"])
    q, k, v = (
        tf.transpose(tf.reshape(dense(x, WIDTH, part), [BATCH, LENGTH, 1, WIDTH]), [0, 2, 1, 3])
        for part in ("query", "key", "value")
    )
    later = (1.0 - tf.linalg.band_part(tf.ones([LENGTH, LENGTH]), -1, 0)) * -10000.0
    weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * WIDTH**-0.5 + later)
    x += tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [BATCH, LENGTH, WIDTH])
    logits = tf.matmul(tf.reshape(x, [BATCH * LENGTH, WIDTH]), table, transpose_b=True)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        features["ids"], tf.reshape(logits, [BATCH, LENGTH, VOCABULARY])
    )
    real = tf.cast(features["real"], tf.float32)
    return spec_of(mode, tf.reduce_sum(losses * real) / tf.reduce_sum(real), {})


def sentences(count=4, garbage=0):
    """Batches whose padding holds ids that differ with `garbage`."""
    random, other = np.random.default_rng(4), np.random.default_rng(garbage)
    made = []
    for _ in range(count):
        lengths = random.integers(2, LENGTH // 2, BATCH)
        real = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
        ids = random.integers(0, VOCABULARY, real.shape).astype(np.int32)
        ids[real == 0] = other.integers(0, VOCABULARY, int((real == 0).sum()))
        features = {"ids": ids, "real": real, "segments": (ids % 2).astype(np.int32)}
        features["at"] = random.integers(0, lengths[:, None], (BATCH, 3)).astype(np.int32)
        features["words"] = random.integers(0, VOCABULARY, (BATCH, 3)).astype(np.int32)
        features["counts"] = (random.random((BATCH, 3)) < 0.7).astype(np.float32)
        made.append((features, random.integers(0, 3, BATCH).astype(np.int32)))
    return made


def marked(made):
    """The batches with ids that no table has where a token or a label is missing."""
    for features, labels in made:
        real, counts = features["real"] > 0, features["counts"] > 0
        changed = {
            "ids": np.where(real, features["ids"], PAD),
            "segments": np.where(real, features["segments"], 2),
            "words": np.where(counts, features["words"], -1),
        }
        changed = {name: value.astype(np.int32) for name, value in changed.items()}
        yield {**features, **changed}, labels


@pytest.mark.parametrize(
    ("model_fn", "others"),
    [(classifier, sentences(garbage=9)), (masked_words, list(marked(sentences())))],
    ids=["classifier", "masked_words"],
)
def test_a_foreign_bert_trains_without_padding_as_on_the_host(tmp_path, model_fn, others):
    """Dropout included: both draw the same numbers for the same token."""
    host = train(model_fn, sentences(), tmp_path / "host", use_cs=False, measure=True)
    wafer = train(model_fn, sentences(), tmp_path / "wafer", use_cs=True, use_vsl=True)
    assert_same_run(host, wafer)
    other = train(model_fn, others, tmp_path / "other", use_cs=True)
    assert other.losses == wafer.losses
    for name, value in wafer.variables.items():
        np.testing.assert_array_equal(other.variables[name], value, err_msg=name)


def test_padding_is_removed_in_evaluation_and_prediction(tmp_path):
    made = estimator(classifier, tmp_path, Run(), use_vsl=True)
    made.train(batches(sentences()), max_steps=3, use_cs=True)
    results = {}
    for use_cs in (False, True):
        loss = made.evaluate(batches(sentences()), steps=4, use_cs=use_cs)["loss"]
        found = made.predict(batches(sentences()), use_cs=use_cs)
        results[use_cs] = loss, [next(found)["probabilities"] for _ in range(8)]
    np.testing.assert_allclose(results[True][0], results[False][0], rtol=1e-5)
    np.testing.assert_allclose(results[True][1], results[False][1], rtol=1e-4, atol=1e-6)


def test_padding_is_removed_on_files_where_activations_fit_in_memory(tmp_path, caplog):
    """Without padding they differ in size from batch to batch, and cannot rest on the disk."""
    free = train(classifier, sentences(), tmp_path / "free", use_cs=True, steps=3)
    given = {"memoryx_dir": str(tmp_path / "store"), "memoryx_ram_gb": 1e-4}
    with caplog.at_level(logging.INFO, "tensorflow"):
        given["wafer_memory_gb"] = 1.2e-4  # of 1.9e-4
        found = train(classifier, sentences(), tmp_path / "fits", use_cs=True, steps=3, **given)
        assert found.losses == free.losses
        assert "are recomputed" in caplog.text and "padding is" not in caplog.text
        given["wafer_memory_gb"] = 1e-6
        with pytest.raises(BatchCapacityError, match="Received: 1e-06"):
            train(classifier, sentences(), tmp_path / "none", use_cs=True, steps=1, **given)
    assert "padding is not removed, so that activations can be spilled" in caplog.text


def test_an_operation_that_reads_padding_is_named_once(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "tensorflow"):
        wafer = train(mean_pooling, sentences(), tmp_path / "wafer", use_cs=True, steps=3)
    host = train(mean_pooling, sentences(), tmp_path / "host", use_cs=False, steps=3, measure=True)
    assert_same_run(host, wafer)
    lines = [text for text in caplog.messages if "padding is not removed" in text]
    assert len(lines) == 1 and "mean ('Mean" in lines[0], caplog.messages


def test_what_was_asked_for_and_cannot_be_proved_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^use_vsl: .*'Mean.*Set use_vsl to False"):
        train(mean_pooling, sentences(), tmp_path, use_cs=True, use_vsl=True)
    train(mean_pooling, sentences(), tmp_path, use_cs=True, steps=1, use_vsl=False)


@pytest.mark.parametrize(
    ("model_fn", "reason"),
    [
        (chosen_scores, "softmax .*unknown form"),
        (smooth_classifier, "no gradient rule.*backward graph"),
    ],
)
def test_padding_kept_by_attention_or_gradients_is_logged_and_refused(
    tmp_path, caplog, model_fn, reason
):
    with pytest.raises(ConfigError, match=f"^use_vsl: .*{reason}"):
        train(model_fn, sentences(), tmp_path, use_cs=True, use_vsl=True)
    caplog.clear()
    with caplog.at_level(logging.INFO, "tensorflow"):
        train(model_fn, sentences(), tmp_path, use_cs=True, steps=1)
    lines = [text for text in caplog.messages if "padding is not removed" in text]
    assert len(lines) == 1 and re.search(reason, lines[0]), caplog.messages


def test_padding_that_only_weights_of_the_loss_show_is_removed_on_request(tmp_path):
    train(language_model, sentences(), tmp_path, use_cs=True, steps=1, use_vsl=True)
