"""Tests of modelzoo/gptj/model.py: the model against its formula in NumPy, float64."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.config.params import params_from_dict
from modelzoo.common.layers.attention import KeyValueCache, cached_mask
from modelzoo.common.optimizers.training import make_optimizer
from modelzoo.gptj.model import gptj_logits, model_fn
from modelzoo.gptj.params import Params
from tests.modelzoo import oracles
from tests.modelzoo.oracles import EVAL, PREDICT, TRAIN, numbered

B, S, V, N, H, L, R = 2, 5, 257, 16, 2, 2, 4
NEOX = {
    "use_untied_layer_norm": True,
    "use_projection_bias_in_attention": True,
    "use_ffn_bias_in_attention": True,
    "use_bias_in_output": False,
}
TIED = {"share_embedding_weights": True}
SERIAL = {**NEOX, "use_parallel_residual": False, "rotary_emb_base": 100.0}


def tree(**model):
    """Parameters with initial values large enough for every layer to matter."""
    wide = {"name": "random_normal", "stddev": 0.3}
    return {
        "model_name": "gptj",
        "train_input": {
            "data_processor": "GptTextDataProcessor",
            "max_sequence_length": S,
            "batch_size": B,
        },
        "model": {
            "hidden_size": N,
            "num_hidden_layers": L,
            "num_heads": H,
            "filter_size": 32,
            "rotary_dim": R,
            "share_embedding_weights": False,
            "layer_norm_epsilon": 1e-5,
            "initializer": wide,
            "embedding_initializer": wide,
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
    mask[0, :2] = 1  # an article that does not count
    mask[1, 3:] = 1  # padding
    return ids, mask, labels


def run(mode, ids=None, **model):
    """The loss (or the predictions) and the variables by name; biases are not zero."""
    first, mask, labels = batch()
    features = {"input_ids": first if ids is None else ids, "input_mask": mask}
    return oracles.run(model_fn, tree(**model), mode, features, labels, vectors=True)


def turn(x, base):
    """The rotation of [B, S, H, D] as complex numbers."""
    pairs = x[..., 0:R:2] + 1j * x[..., 1:R:2]
    rates = base ** (-np.arange(0, R, 2) / R)
    pairs = pairs * np.exp(1j * np.arange(S)[:, None, None] * rates)
    both = np.stack([pairs.real, pairs.imag], axis=-1).reshape(*x.shape[:-1], R)
    return np.concatenate([both, x[..., R:]], axis=-1)


def log_probs_of(ids, weights, parallel=True, base=10000.0):
    """Log-probabilities [B, S, V] by the formulas of Black et al. (2022, section 2.1)."""
    oracle = oracles.Oracle(weights, H)
    table = oracle.values["input_embedding/embedding_weights"]
    x = table[ids]

    def turned(heads):
        return turn(heads, base)

    for i in range(L):
        block = f"gptj_decoder/{i}"
        y = oracle.norm(x, f"{block}/ln_1")
        hidden = oracles.later(S)[None]
        attended = x + oracle.attend(y, f"{block}/attn", hidden, turn=turned, short=True)
        untied = f"{block}/ln_2/ln_2/gamma" in weights
        z = oracle.norm(x if parallel else attended, f"{block}/ln_2") if untied else y
        first, second = (f"{block}/mlp/{numbered('dense_layer', n)}" for n in (2 * i, 2 * i + 1))
        x = attended + oracle.dense(oracles.gelu(oracle.dense(z, first)), second)
    x = oracle.norm(x, "post_decoder_layer_norm")
    if "lm_head/lm_head/kernel" in weights:
        return oracles.log_softmax(oracle.dense(x, "lm_head"))
    return oracles.log_softmax(x @ table.T + oracle.values.get("bias", 0.0))


@pytest.mark.parametrize("model", [{}, NEOX, TIED, SERIAL], ids=["gptj", "neox", "tied", "serial"])
def test_loss_is_the_mean_over_tokens_that_count(model):
    loss, weights = run(EVAL, **model)
    ids, mask, labels = batch()
    variant = (False, 100.0) if model is SERIAL else ()
    log_probs = oracles.taken(log_probs_of(ids, weights, *variant), labels)
    expected = -(log_probs * (1 - mask)).sum() / (1 - mask).sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_prediction_is_the_likeliest_token_and_its_log_probability():
    predictions, weights = run(PREDICT)
    log_probs = log_probs_of(batch()[0], weights)
    np.testing.assert_array_equal(predictions["next_token_ids"], log_probs.argmax(-1))
    np.testing.assert_allclose(
        predictions["next_token_log_probs"], log_probs.max(-1), rtol=1e-4, atol=1e-5
    )


def test_article_is_seen_and_padding_is_not():
    ids, _, _ = batch()
    loss, _ = run(EVAL)
    padding, article = ids.copy(), ids.copy()
    padding[1, 3:] += 1
    article[0, 0] = (ids[0, 0] + 1) % V
    assert run(EVAL, padding % V)[0] == loss
    assert abs(run(EVAL, article)[0] - loss) > 1e-4


def test_mixed_precision_is_close_to_float32():
    loss, exact = run(EVAL, mixed_precision=True)[0], run(EVAL)[0]
    assert loss != exact
    np.testing.assert_allclose(loss, exact, rtol=2e-2)


@pytest.mark.parametrize(
    "model",
    [
        NEOX,
        SERIAL,
        {"rotary_dim": None, "embedding_dropout_rate": 0.1, "residual_dropout_rate": 0.1},
        {"attention_dropout_rate": 0.1, "use_ffn_bias": False, **TIED},
    ],
    ids=["neox", "serial", "full_head", "tied"],
)
def test_variant_trains(model):
    """Training refuses variables that the loss does not depend on."""
    assert np.isfinite(run(TRAIN, **model)[0])


def test_cache_gives_the_logits_of_the_whole_sequence():
    """Three tokens, then two more on their keys and values, one of them not yet filled."""
    ids, params = batch()[0], params_from_dict(Params, tree())
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("", reuse=tf.AUTO_REUSE):
            whole = tf.reshape(gptj_logits(tf.constant(ids), params, False), [B, S, V])
            empty = KeyValueCache(tf.zeros([L, 2, B, H, 0, N // H]))
            gptj_logits(tf.constant(ids[:, :3]), params, False, empty)
            past = tf.pad(empty.present(), [[0, 0]] * 4 + [[0, 1], [0, 0]], constant_values=9.0)
            rest = gptj_logits(
                tf.constant(ids[:, 3:]),
                params,
                False,
                KeyValueCache(past),
                positions=tf.constant([[3, 4]] * B),
                mask=cached_mask(tf.constant([3] * B), 4, 2, tf.float32),
                wanted=tf.constant([1, 0]),
            )
        session.run(tf.global_variables_initializer())
        expected, found = session.run([whole, rest])
    np.testing.assert_allclose(found, expected[[0, 1], [4, 3]], rtol=1e-4, atol=1e-5)


def test_initial_values_have_the_deviation_of_their_source():
    """Kernels 1 / sqrt(fan_in), outputs 2 / (L sqrt(fan_in)), embedding 1 / sqrt(V)."""
    none = {"initializer": None, "embedding_initializer": None, "output_layer_initializer": None}
    sizes = {"hidden_size": 128, "filter_size": 512, "num_hidden_layers": 4, **none}
    _, weights = run(EVAL, **sizes)
    deviation = {name: value.std() for name, value in weights.items()}
    kernel = "gptj_decoder/1/{0}/kernel".format
    expected = {
        kernel("attn/q_proj/q_proj"): 128**-0.5,
        kernel("attn/out_proj/out_proj"): 0.5 * 128**-0.5,
        kernel("mlp/dense_layer_2/dense_layer_2"): 128**-0.5,
        kernel("mlp/dense_layer_3/dense_layer_3"): 0.5 * 512**-0.5,
        # Cut at two deviations, which leaves 0.8796 of the deviation.
        "input_embedding/embedding_weights": 0.8796 * V**-0.5,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(deviation[name], value, rtol=0.03, err_msg=name)


def test_weight_decay_leaves_norms_and_biases_alone():
    adamw = {"optimizer_type": "adamw", "weight_decay_rate": 0.1, "learning_rate": 0.1}
    params = params_from_dict(Params, {**tree(), "optimizer": adamw})
    optimizer = make_optimizer(params.optimizer, 0.1)
    _, weights = run(EVAL, **NEOX)
    for name, value in weights.items():
        assert optimizer.decays(f"{name}:0") == (value.ndim > 1), name
