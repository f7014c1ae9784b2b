"""Tests of modelzoo/gpt3/model.py: the model against its formula in NumPy, float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config import schema
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.layers.lm_head import lm_loss
from modelzoo.gpt3.model import model_fn
from modelzoo.gpt3.params import Params

B, S, V, N, H, L = 2, 5, 257, 8, 2, 2


def tree(**model):
    """Parameters with initial values large enough for every layer to matter."""
    wide = {"name": "random_normal", "stddev": 0.5}
    return {
        "model_name": "gpt3",
        "train_input": {
            "data_processor": "GptTextDataProcessor",
            "max_sequence_length": S,
            "batch_size": B,
        },
        "model": {
            "hidden_size": N,
            "num_hidden_layers": L,
            "num_heads": H,
            "filter_size": 16,
            "layer_norm_epsilon": 1e-5,
            "initializer": wide,
            "output_layer_initializer": wide,
            **model,
        },
        "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.1},
    }


def batch():
    generator = np.random.default_rng(0)
    ids = generator.integers(0, V, (B, S)).astype(np.int32)
    labels = generator.integers(0, V, (B, S)).astype(np.int32)
    mask = np.zeros((B, S), np.int32)
    mask[1, 3:] = 1
    return ids, mask, labels


def run(mode, **model):
    """Returns the loss (or the predictions) and the variables by name."""
    ids, mask, labels = batch()
    with tf.Graph().as_default(), tf.Session() as session:
        features = {"input_ids": tf.constant(ids), "input_mask": tf.constant(mask)}
        spec = model_fn(features, tf.constant(labels), mode, tree(**model))
        session.run(tf.global_variables_initializer())
        wanted = spec.predictions if mode == tf.estimator.ModeKeys.PREDICT else spec.loss
        variables = {v.op.name: v for v in tf.trainable_variables()}
        return session.run([wanted, variables])


def layer_norm(x, weights, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + 1e-5)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def oracle(ids, weights, by_layer=False):
    """Log-probabilities [B, S, V] by the formulas of Radford et al. (2019), pre-norm."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}

    def dense(x, name):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def attention(x, name, share):
        heads = {
            kind: dense(x, f"{name}/{kind}_projection/{kind}_projection").reshape(B, S, H, N // H)
            for kind in "qkv"
        }
        scores = np.einsum("bshd,bthd->bhst", heads["q"], heads["k"]) / math.sqrt(N // H) * share
        scores = np.where(np.tril(np.ones((S, S))), scores, -np.inf)
        mixed = np.einsum("bhst,bthd->bshd", np.exp(log_softmax(scores)), heads["v"])
        return dense(mixed.reshape(B, S, N), f"{name}/output_transform/output_transform")

    table = weights["input_embedding/embedding_weights"]
    x = table[ids] + weights["position_embedding/position_embedding_weights"]
    for i in range(L):
        suffix = "_1" if i else ""
        norms = [f"layer_normalization_layer{s}" for s in (("", "_2"), ("_3", "_5"))[i]]
        first, second = (("", "_1"), ("_2", "_3"))[i]
        y = layer_norm(x, weights, f"decoder/{norms[0]}/{norms[0]}")
        x = x + attention(y, f"decoder/self_attention{suffix}", 1 / (i + 1) if by_layer else 1)
        y = layer_norm(x, weights, f"decoder/{norms[1]}/{norms[1]}")
        ffn = f"decoder/ffn{suffix}/dense_layer"
        y = gelu(dense(y, f"{ffn}{first}/dense_layer{first}"))
        x = x + dense(y, f"{ffn}{second}/dense_layer{second}")
    name = "post_decoder_layer_norm"
    return log_softmax(layer_norm(x, weights, f"{name}/{name}") @ table.T)


def expected_loss(weights, by_layer=False):
    ids, mask, labels = batch()
    log_probs = oracle(ids, weights, by_layer)
    log_probs = np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
    return -(log_probs * (1 - mask)).sum(), (1 - mask).sum()


@pytest.mark.parametrize("by_layer", [False, True])
def test_loss_is_the_mean_over_valid_tokens(by_layer):
    loss, weights = run(tf.estimator.ModeKeys.EVAL, scale_attn_by_inverse_layer_idx=by_layer)
    total, count = expected_loss(weights, by_layer)
    np.testing.assert_allclose(loss, total / count, rtol=1e-5)


def test_loss_per_sequence_is_divided_by_the_batch_and_weighted():
    loss, weights = run(tf.estimator.ModeKeys.EVAL, loss_scaling="batch_size", loss_weight=0.25)
    np.testing.assert_allclose(loss, expected_loss(weights)[0] / B * 0.25, rtol=1e-5)


def test_mixed_precision_is_close_to_float32():
    loss, _ = run(tf.estimator.ModeKeys.EVAL, mixed_precision=True)
    exact, _ = run(tf.estimator.ModeKeys.EVAL)
    assert loss != exact
    np.testing.assert_allclose(loss, exact, rtol=2e-2)


def test_prediction_is_the_likeliest_token_and_its_log_probability():
    predictions, weights = run(tf.estimator.ModeKeys.PREDICT)
    log_probs = oracle(batch()[0], weights)
    np.testing.assert_array_equal(predictions["next_token_ids"], log_probs.argmax(-1))
    np.testing.assert_allclose(
        predictions["next_token_log_probs"], log_probs.max(-1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "model",
    [
        {"use_pre_normalization": False},
        {"position_embedding_type": "fixed"},
        {"share_embedding_weights": False, "embedding_size": 4},
        {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "nonlinearity": "relu"},
        {"use_projection_bias_in_attention": False, "use_ffn_bias": False},
    ],
    ids=lambda model: next(iter(model)),
)
def test_variant_has_a_finite_loss_and_gradients_everywhere(model):
    loss, _ = run(tf.estimator.ModeKeys.TRAIN, **model)
    assert np.isfinite(loss)


def test_initial_values_do_not_depend_on_what_was_built_before():
    _, first = run(tf.estimator.ModeKeys.EVAL)
    _, second = run(tf.estimator.ModeKeys.TRAIN)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


def test_more_tokens_than_float16_can_count_are_counted():
    tokens = 70_000  # above 65,504, the largest float16
    with tf.Graph().as_default(), tf.Session() as session:
        ones = tf.ones([tokens])
        assert session.run(lm_loss(2.0 * ones, ones, "num_tokens", 1)) == 2.0


def test_heads_that_do_not_divide_the_hidden_size_are_refused():
    report = schema.Report("f.yaml")
    schema.build(Params, {**tree(num_heads=3), "runconfig": {}}, report)
    assert report.messages == ["f.yaml: model.num_heads must divide hidden_size (8). Received: 3."]


def test_evaluation_takes_its_shapes_from_training():
    section = {"data_processor": "GptTextDataProcessor", "data_dir": "x"}
    params = params_from_dict(Params, {**tree(), "eval_input": section})
    assert params.eval_input.batch_size == B and params.eval_input.max_sequence_length == S
    assert params.predict_input is None and not params.eval_input.repeat
    params = params_from_dict(Params, {**tree(), "eval_input": section, "predict_input": {}})
    assert params.predict_input == params.eval_input
