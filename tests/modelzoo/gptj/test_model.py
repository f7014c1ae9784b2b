"""Tests of modelzoo/gptj/model.py: the model against its formula in NumPy, float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.config.params import params_from_dict
from modelzoo.common.layers.attention import KeyValueCache, cached_mask
from modelzoo.common.optimizers.training import make_optimizer
from modelzoo.gptj.model import gptj_logits, model_fn
from modelzoo.gptj.params import Params

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
    """Returns the loss (or the predictions) and the variables by name; biases are not zero."""
    first, mask, labels = batch()
    ids = first if ids is None else ids
    with tf.Graph().as_default(), tf.Session() as session:
        features = {"input_ids": tf.constant(ids), "input_mask": tf.constant(mask)}
        spec = model_fn(features, tf.constant(labels), mode, tree(**model))
        session.run(tf.global_variables_initializer())
        disturb(session)
        wanted = spec.predictions if mode == tf.estimator.ModeKeys.PREDICT else spec.loss
        variables = {v.op.name: v for v in tf.trainable_variables()}
        return session.run([wanted, variables])


def disturb(session):
    """Gives vectors, which start as zeros and ones, values of their own."""
    generator = np.random.default_rng(1)
    vectors = [variable for variable in tf.trainable_variables() if variable.shape.rank == 1]
    # In one run: each run of another operation prepares the whole graph anew.
    feeds = {
        variable.initializer.inputs[1]: value + generator.normal(0, 0.3, variable.shape)
        for variable, value in zip(vectors, session.run(vectors))
    }
    session.run([variable.initializer for variable in vectors], feeds)


def layer_norm(x, weights, name):
    name = f"{name}/{name.split('/')[-1]}"
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + 1e-5)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def turn(x, base):
    """The rotation of [B, S, H, D] as complex numbers."""
    pairs = x[..., 0:R:2] + 1j * x[..., 1:R:2]
    rates = base ** (-np.arange(0, R, 2) / R)
    pairs = pairs * np.exp(1j * np.arange(S)[:, None, None] * rates)
    both = np.stack([pairs.real, pairs.imag], axis=-1).reshape(*x.shape[:-1], R)
    return np.concatenate([both, x[..., R:]], axis=-1)


def oracle(ids, weights, parallel=True, base=10000.0):
    """Log-probabilities [B, S, V] by the formulas of Black et al. (2022, section 2.1)."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}

    def dense(x, name):
        name = f"{name}/{name.split('/')[-1]}"
        return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)

    def attention(x, name):
        q, k, v = (dense(x, f"{name}/{kind}_proj").reshape(B, S, H, N // H) for kind in "qkv")
        scores = np.einsum("bshd,bthd->bhst", turn(q, base), turn(k, base)) / math.sqrt(N // H)
        scores = np.where(np.tril(np.ones((S, S))), scores, -np.inf)
        mixed = np.einsum("bhst,bthd->bshd", np.exp(log_softmax(scores)), v)
        return dense(mixed.reshape(B, S, N), f"{name}/out_proj")

    table = weights["input_embedding/embedding_weights"]
    x = table[ids]
    for i in range(L):
        block = f"gptj_decoder/{i}"
        first, second = (("dense_layer", "dense_layer_1"), ("dense_layer_2", "dense_layer_3"))[i]
        y = layer_norm(x, weights, f"{block}/ln_1")
        untied = f"{block}/ln_2/ln_2/gamma" in weights
        attended = x + attention(y, f"{block}/attn")
        z = layer_norm(x if parallel else attended, weights, f"{block}/ln_2") if untied else y
        fed = dense(gelu(dense(z, f"{block}/mlp/{first}")), f"{block}/mlp/{second}")
        x = attended + fed
    x = layer_norm(x, weights, "post_decoder_layer_norm")
    if "lm_head/lm_head/kernel" in weights:
        return log_softmax(dense(x, "lm_head"))
    return log_softmax(x @ table.T + weights.get("bias", 0.0))


@pytest.mark.parametrize("model", [{}, NEOX, TIED, SERIAL], ids=["gptj", "neox", "tied", "serial"])
def test_loss_is_the_mean_over_tokens_that_count(model):
    loss, weights = run(tf.estimator.ModeKeys.EVAL, **model)
    ids, mask, labels = batch()
    variant = (False, 100.0) if model is SERIAL else ()
    log_probs = oracle(ids, weights, *variant)
    log_probs = np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
    expected = -(log_probs * (1 - mask)).sum() / (1 - mask).sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_prediction_is_the_likeliest_token_and_its_log_probability():
    predictions, weights = run(tf.estimator.ModeKeys.PREDICT)
    log_probs = oracle(batch()[0], weights)
    np.testing.assert_array_equal(predictions["next_token_ids"], log_probs.argmax(-1))
    np.testing.assert_allclose(
        predictions["next_token_log_probs"], log_probs.max(-1), rtol=1e-4, atol=1e-5
    )


def test_article_is_seen_and_padding_is_not():
    ids, _, _ = batch()
    loss, _ = run(tf.estimator.ModeKeys.EVAL)
    padding, article = ids.copy(), ids.copy()
    padding[1, 3:] += 1
    article[0, 0] = (ids[0, 0] + 1) % V
    assert run(tf.estimator.ModeKeys.EVAL, padding % V)[0] == loss
    assert abs(run(tf.estimator.ModeKeys.EVAL, article)[0] - loss) > 1e-4


def test_mixed_precision_is_close_to_float32():
    loss, _ = run(tf.estimator.ModeKeys.EVAL, mixed_precision=True)
    exact, _ = run(tf.estimator.ModeKeys.EVAL)
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
    loss, _ = run(tf.estimator.ModeKeys.TRAIN, **model)
    assert np.isfinite(loss)


def test_variables_have_the_names_of_the_original_checkpoints():
    names = {}
    for key, model in {"gptj": {}, "neox": NEOX, "tied": TIED}.items():
        names[key] = set(run(tf.estimator.ModeKeys.EVAL, **model)[1])
    expected = {"input_embedding/embedding_weights", "lm_head/lm_head/kernel"}
    expected |= {f"post_decoder_layer_norm/post_decoder_layer_norm/{p}" for p in ("gamma", "beta")}
    biases, second_norm = {"lm_head/lm_head/bias"}, set()
    for i in range(L):
        block = f"gptj_decoder/{i}"
        projections = [f"{block}/attn/{p}_proj/{p}_proj" for p in ("q", "k", "v", "out")]
        expected |= {f"{name}/kernel" for name in projections}
        biases |= {f"{name}/bias" for name in projections}
        for number in (2 * i, 2 * i + 1):
            dense = f"dense_layer_{number}" if number else "dense_layer"
            expected |= {f"{block}/mlp/{dense}/{dense}/{p}" for p in ("kernel", "bias")}
        expected |= {f"{block}/ln_1/ln_1/{p}" for p in ("gamma", "beta")}
        second_norm |= {f"{block}/ln_2/ln_2/{p}" for p in ("gamma", "beta")}
    head = {"lm_head/lm_head/kernel", "lm_head/lm_head/bias"}
    assert names["gptj"] == expected | {"lm_head/lm_head/bias"}
    assert names["neox"] == (expected | biases | second_norm) - {"lm_head/lm_head/bias"}
    assert names["tied"] == (expected | {"bias"}) - head


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
    _, weights = run(tf.estimator.ModeKeys.EVAL, **sizes)
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
    _, weights = run(tf.estimator.ModeKeys.EVAL, **NEOX)
    for name, value in weights.items():
        assert optimizer.decays(f"{name}:0") == (value.ndim > 1), name
