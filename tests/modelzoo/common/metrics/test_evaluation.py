"""Tests that the metrics are equal on host and wafer, and those of the whole evaluation set."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf import CerebrasEstimator, CSEstimatorSpec, CSRunConfig
from modelzoo.common import metrics
from modelzoo.common.metrics.rouge import rouge

B, S, N, EXAMPLES = 4, 6, 5, 20
NAMES = ["O", "B", "I"]


def arrays():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, S, N)).astype(np.float32)
    labels = generator.integers(0, 3, (EXAMPLES, S)).astype(np.int32)
    weights = (np.arange(S) < generator.integers(2, S, (EXAMPLES, 1))).astype(np.float32)
    return x, labels, weights


def input_fn():
    x, labels, weights = arrays()
    data = tf.data.Dataset.from_tensor_slices(({"x": x, "weights": weights}, labels))
    return data.batch(B, drop_remainder=True)


def pick(labels, choices):
    """The numbers of the tokens above 0, as a summary of one sentence."""
    return [
        ([np.flatnonzero(choice).tolist()], [np.flatnonzero(label).tolist()])
        for label, choice in zip(labels, choices)
    ]


def metric_fn(labels, choices, first, cross_entropy, weights):
    flat = [tf.reshape(column, [-1]) for column in (labels, choices, cross_entropy, weights)]
    return {
        **metrics.masked_lm_metrics(*flat),
        **metrics.seq2seq_lm_metrics(*flat),
        **metrics.lm_metrics(*flat, ratio=1.0),
        **metrics.token_classification_metrics(labels, choices, weights, NAMES),
        **metrics.classifier_metrics(labels[:, 0] % 2, first, 2, is_matched=weights[:, 3]),
        **metrics.rouge_metrics(pick, [labels, choices]),
    }


def model_fn(features, labels, mode, params):
    """A classifier of tokens, and one of examples by their first token."""
    logits = tf.layers.dense(features["x"], 3, name="tokens")  # (B, S, 3)
    first = tf.layers.dense(features["x"][:, 0], 2, name="first")  # (B, 2)
    cost = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(cost)
    if mode == tf.estimator.ModeKeys.TRAIN:
        step = tf.train.get_or_create_global_step()
        total = loss + tf.reduce_mean(tf.square(first - 0.5))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(total, global_step=step)
        return CSEstimatorSpec(mode=mode, loss=total, train_op=train_op)
    choices = [tf.argmax(one, axis=-1, output_type=tf.int32) for one in (logits, first)]
    tensors = [labels, *choices, cost, features["weights"]]
    return CSEstimatorSpec(mode=mode, loss=loss, host_call=(metric_fn, tensors))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Results of the host and of the wafer, and the variables they were computed with."""
    folder = str(tmp_path_factory.mktemp("model"))
    config = CSRunConfig(tf_random_seed=3, log_step_count_steps=None, save_summary_steps=None)
    made = CerebrasEstimator(model_fn, folder, config=config, params={})
    made.train(input_fn, max_steps=2, use_cs=False)
    results = [made.evaluate(input_fn, use_cs=use_cs) for use_cs in (False, True)]
    return (*results, {name: made.get_variable_value(name) for name in made.get_variable_names()})


def test_metrics_are_equal_on_host_and_wafer(evaluated):
    host, wafer, _ = evaluated
    assert len(host) == 31
    assert wafer == {name: pytest.approx(value, rel=1e-5) for name, value in host.items()}


def test_metrics_on_the_wafer_are_those_of_the_whole_set(evaluated):
    _, found, variables = evaluated
    x, labels, weights = arrays()
    logits = x @ variables["tokens/kernel"].astype(np.float64) + variables["tokens/bias"]
    choices = logits.argmax(-1)
    log_z = np.log(np.exp(logits).sum(-1))
    costs = log_z - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    kept = weights > 0
    accuracy, loss = np.mean(choices[kept] == labels[kept]), costs[kept].mean()
    for name in ("eval/accuracy", "eval/accuracy_lm", "eval/accuracy_masked_lm"):
        assert found[name] == pytest.approx(accuracy)
    for name in ("eval/lm_perplexity", "eval/perplexity_lm", "eval/mlm_perplexity"):
        assert found[name] == pytest.approx(math.exp(loss), rel=1e-5)

    f1 = [
        2
        * np.sum(kept & (choices == c) & (labels == c))
        / (np.sum(kept & (choices == c)) + np.sum(kept & (labels == c)))
        for c in (1, 2)
    ]
    assert found["eval/token_level_macro_f1"] == pytest.approx(np.mean(f1))

    logits = x[:, 0] @ variables["first/kernel"].astype(np.float64) + variables["first/bias"]
    hits, matched = logits.argmax(-1) == labels[:, 0] % 2, weights[:, 3] > 0
    assert found["eval/accuracy_cls"] == pytest.approx(hits.mean())
    assert found["eval/accuracy_matched"] == pytest.approx(hits[matched].mean())
    assert found["eval/mcc"] == pytest.approx(
        np.corrcoef(logits.argmax(-1), labels[:, 0] % 2)[0, 1], abs=1e-6
    )

    scores = [rouge(*pair)["rouge2"].f1_score for pair in pick(labels, choices)]
    assert found["eval/rouge2-f1_score"] == pytest.approx(np.mean(scores))
