"""Tests of modelzoo/gpt3/model.py: the model against its formula in NumPy, float64."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.layers.lm_head import lm_loss
from modelzoo.gpt3.model import model_fn
from tests.modelzoo import oracles
from tests.modelzoo.oracles import EVAL, PREDICT, TRAIN, numbered, taken

B, S, V, N, H, L = 2, 5, 257, 8, 2, 2
WIDE = {"name": "random_normal", "stddev": 0.5}  # large enough for every layer to matter
MODEL = {
    "hidden_size": N,
    "num_hidden_layers": L,
    "num_heads": H,
    "filter_size": 16,
    "layer_norm_epsilon": 1e-5,
    "initializer": WIDE,
    "output_layer_initializer": WIDE,
}
SECTION = {"data_processor": "GptTextDataProcessor", "max_sequence_length": S, "batch_size": B}


def batch():
    generator = np.random.default_rng(0)
    ids, labels = generator.integers(0, V, (2, B, S)).astype(np.int32)
    mask = np.zeros((B, S), np.int32)
    mask[1, 3:] = 1
    return ids, mask, labels


def run(mode, **model):
    """The loss (or the predictions) and the variables by name."""
    ids, mask, labels = batch()
    optimizer = {"optimizer_type": "sgd", "learning_rate": 0.1}
    tree = {"model_name": "gpt3", "train_input": SECTION, "optimizer": optimizer}
    tree["model"] = {**MODEL, **model}
    return oracles.run(model_fn, tree, mode, {"input_ids": ids, "input_mask": mask}, labels)


def log_probs_of(ids, weights, by_layer=False):
    """Log-probabilities [B, S, V] by the formulas of Radford et al. (2019), pre-norm."""
    oracle = oracles.Oracle(weights, H)
    table = oracle.values["input_embedding/embedding_weights"]
    x = table[ids] + oracle.values["position_embedding/position_embedding_weights"]
    norm = "decoder/layer_normalization_layer"
    for i in range(L):
        y = oracle.norm(x, numbered(norm, 3 * i))
        share = 1 / (i + 1) if by_layer else 1
        attention = numbered("decoder/self_attention", i)
        x = x + oracle.attend(y, attention, oracles.later(S)[None], share=share)
        y = oracle.norm(x, numbered(norm, 3 * i + 2))
        ffn = numbered("decoder/ffn", i)
        y = oracles.gelu(oracle.dense(y, f"{ffn}/{numbered('dense_layer', 2 * i)}"))
        x = x + oracle.dense(y, f"{ffn}/{numbered('dense_layer', 2 * i + 1)}")
    return oracles.log_softmax(oracle.norm(x, "post_decoder_layer_norm") @ table.T)


def expected_loss(weights, by_layer=False):
    """Summed cost of the tokens that count, and their number."""
    ids, mask, labels = batch()
    log_probs = taken(log_probs_of(ids, weights, by_layer), labels)
    return -(log_probs * (1 - mask)).sum(), (1 - mask).sum()


@pytest.mark.parametrize("by_layer", [False, True])
def test_loss_is_the_mean_over_valid_tokens(by_layer):
    loss, weights = run(EVAL, scale_attn_by_inverse_layer_idx=by_layer)
    total, count = expected_loss(weights, by_layer)
    np.testing.assert_allclose(loss, total / count, rtol=1e-5)


def test_loss_per_sequence_is_divided_by_the_batch_and_weighted():
    loss, weights = run(EVAL, loss_scaling="batch_size", loss_weight=0.25)
    np.testing.assert_allclose(loss, expected_loss(weights)[0] / B * 0.25, rtol=1e-5)


def test_mixed_precision_is_close_to_float32():
    loss, exact = run(EVAL, mixed_precision=True)[0], run(EVAL)[0]
    assert loss != exact
    np.testing.assert_allclose(loss, exact, rtol=2e-2)


def test_prediction_is_the_likeliest_token_and_its_log_probability():
    found, weights = run(PREDICT)
    log_probs = log_probs_of(batch()[0], weights)
    np.testing.assert_array_equal(found["next_token_ids"], log_probs.argmax(-1))
    np.testing.assert_allclose(
        found["next_token_log_probs"], log_probs.max(-1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "model",
    [
        {
            "use_pre_normalization": False,
            "position_embedding_type": "fixed",
            "nonlinearity": "relu",
        },
        {"share_embedding_weights": False, "embedding_size": 4, "dropout_rate": 0.1},
        {
            "attention_dropout_rate": 0.1,
            "use_projection_bias_in_attention": False,
            "use_ffn_bias": False,
        },
    ],
    ids=lambda model: next(iter(model)),
)
def test_variant_has_a_finite_loss_and_gradients_everywhere(model):
    assert np.isfinite(run(TRAIN, **model)[0])


def test_initial_values_do_not_depend_on_what_was_built_before():
    first, second = run(EVAL)[1], run(TRAIN)[1]
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


def test_more_tokens_than_float16_can_count_are_counted():
    tokens = 70_000  # above 65,504, the largest float16
    with tf.Graph().as_default(), tf.Session() as session:
        ones = tf.ones([tokens])
        assert session.run(lm_loss(2.0 * ones, ones, "num_tokens", 1)) == 2.0
