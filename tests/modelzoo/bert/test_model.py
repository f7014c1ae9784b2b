"""Tests of modelzoo/bert/model.py: the model against its formula in NumPy, float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError
from modelzoo.bert.model import model_fn
from modelzoo.bert.params import Params
from modelzoo.common.config.params import params_from_dict

B, S, P, V, N, H, L = 3, 6, 2, 40, 8, 2, 2
TRAIN, EVAL, PREDICT = (
    tf.estimator.ModeKeys.TRAIN,
    tf.estimator.ModeKeys.EVAL,
    tf.estimator.ModeKeys.PREDICT,
)


def tree(data_processor="BertTfRecordsProcessor", **model):
    """Parameters with initial values large enough for every layer to matter."""
    section = {
        "data_processor": data_processor,
        "data_dir": "x",
        "vocab_size": V,
        "max_sequence_length": S,
        "max_predictions_per_seq": P,
        "batch_size": B,
    }
    sizes = {"hidden_size": N, "num_hidden_layers": L, "num_heads": H, "filter_size": 16}
    wide = {"name": "random_normal", "stddev": 0.5}
    segments = {"use_segment_embedding": True, "layer_norm_epsilon": 1e-5}
    return {
        "model_name": "bert",
        "train_input": section,
        "model": {**sizes, **segments, "initializer": wide, **model},
        "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.1},
    }


def batch():
    generator = np.random.default_rng(0)
    lengths = np.array([6, 4, 5])
    features = {
        "input_ids": generator.integers(0, V, (B, S)),
        "input_mask": np.arange(S) >= lengths[:, None],
        "segment_ids": np.arange(S) >= lengths[:, None] // 2,
        "masked_lm_positions": np.array([[1, 4], [2, 0], [3, 0]]),
        "masked_lm_ids": generator.integers(0, V, (B, P)),
    }
    features = {name: value.astype(np.int32) for name, value in features.items()}
    features["masked_lm_weights"] = np.array([[1, 1], [1, 0], [1, 0]], np.float32)
    return features, np.array([[0], [1], [1]], np.int32)


def run(mode, features=None, wanted=None, **model):
    """Returns the loss (or the predictions, or the metrics) and the variables by name."""
    given, labels = batch()
    with tf.Graph().as_default(), tf.Session() as session:
        fed = {name: tf.constant(value) for name, value in (features or given).items()}
        spec = model_fn(fed, tf.constant(labels), mode, tree(**model))
        if wanted is None:
            wanted = spec.predictions if mode == PREDICT else spec.loss
        else:
            function, tensors = spec.host_call
            wanted = {name: pair[1] for name, pair in function(*tensors).items()}
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return session.run([wanted, {v.op.name: v for v in tf.trainable_variables()}])


def layer_norm(x, weights, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + 1e-5)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def oracle(features, weights, act=gelu):
    """Log-probabilities of words [B, P, V] and of next sentences [B, 2] (Devlin et al. 2018)."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}

    def dense(x, name):
        name = f"{name}/{name.split('/')[-1]}"
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def attention(x, name):
        heads = {
            kind: dense(x, f"{name}/{kind}_projection").reshape(B, S, H, N // H) for kind in "qkv"
        }
        scores = np.einsum("bshd,bthd->bhst", heads["q"], heads["k"]) / math.sqrt(N // H)
        scores = np.where(features["input_mask"][:, None, None, :] == 1, -np.inf, scores)
        mixed = np.einsum("bhst,bthd->bshd", np.exp(log_softmax(scores)), heads["v"])
        return dense(mixed.reshape(B, S, N), f"{name}/output_transform")

    table = weights["input_embedding/embedding_weights"]
    x = table[features["input_ids"]] + weights["position_embedding/position_embedding_weights"]
    x = x + weights["segment_embedding/segment_embedding_weights"][features["segment_ids"]]
    x = layer_norm(x, weights, "pre_encoder_layer_norm/pre_encoder_layer_norm")
    for i in range(L):
        suffix = "_1" if i else ""
        norms = [f"layer_normalization_layer{s}" for s in (("", "_1"), ("_2", "_3"))[i]]
        first, second = (("", "_1"), ("_2", "_3"))[i]
        x = x + attention(x, f"encoder/self_attention{suffix}")
        x = layer_norm(x, weights, f"encoder/{norms[0]}/{norms[0]}")
        ffn = f"encoder/ffn{suffix}/dense_layer"
        x = x + dense(act(dense(x, f"{ffn}{first}")), f"{ffn}{second}")
        x = layer_norm(x, weights, f"encoder/{norms[1]}/{norms[1]}")
    rows = np.take_along_axis(x, features["masked_lm_positions"][..., None], 1)
    rows = act(dense(rows, "mlm_layer/mlm_ffn"))
    rows = layer_norm(rows, weights, "mlm_layer/mlm_layer_norm/mlm_layer_norm")
    words = log_softmax(rows @ table.T + weights["mlm_layer/mlm_bias"])
    if "cls_layer/cls_dense/cls_dense/kernel" not in weights:
        return words, None
    first = np.tanh(dense(x[:, 0], "cls_layer/cls_dense"))
    return words, log_softmax(dense(first, "cls_layer/cls_output_dense"))


def expected_costs(weights, act=gelu):
    """Summed cost of the masked words, their number, and the mean cost of the next sentence."""
    features, labels = batch()
    words, sentences = oracle(features, weights, act)
    cost = -np.take_along_axis(words, features["masked_lm_ids"][..., None], -1)[..., 0]
    total = (cost * features["masked_lm_weights"]).sum()
    nsp = 0 if sentences is None else -np.take_along_axis(sentences, labels, -1).mean()
    return total, features["masked_lm_weights"].sum(), nsp


@pytest.mark.parametrize("activation", [gelu, gelu_exact], ids=["gelu", "gelu_exact"])
def test_loss_is_that_of_the_words_and_that_of_the_next_sentence(activation):
    model = {"encoder_nonlinearity": activation.__name__, "mlm_loss_scaling": "num_masked"}
    loss, weights = run(EVAL, **model)
    total, count, nsp = expected_costs(weights, activation)
    np.testing.assert_allclose(loss, total / count + nsp, rtol=1e-5)


@pytest.mark.parametrize("scaling", ["precomputed_num_masked", "batch_size"])
def test_loss_per_sequence_is_divided_by_the_batch_and_weighted(scaling):
    loss, weights = run(EVAL, mlm_loss_scaling=scaling, mlm_loss_weight=0.25)
    total, _, nsp = expected_costs(weights)
    np.testing.assert_allclose(loss, total / B * 0.25 + nsp, rtol=1e-5)


def test_words_alone_need_no_next_sentence():
    loss, weights = run(EVAL, disable_nsp=True, mlm_loss_scaling="num_masked")
    assert not any(name.startswith("cls_layer") for name in weights)
    total, count, _ = expected_costs(weights)
    np.testing.assert_allclose(loss, total / count, rtol=1e-5)


def test_missing_segments_are_all_the_first():
    features, _ = batch()
    del features["segment_ids"]
    loss, _ = run(EVAL, features)
    zeros = {**batch()[0], "segment_ids": np.zeros((B, S), np.int32)}
    assert loss == run(EVAL, zeros)[0] != run(EVAL)[0]


def test_rows_before_the_first_position_are_nobodys_and_one_segment_is_all():
    """RoBERTa's form: the same loss as of the model without rows before, and segments of zeros."""
    model = {"disable_nsp": True, "mlm_loss_scaling": "num_masked"}
    loss, weights = run(EVAL, position_embedding_offset=2, num_segments=1, **model)
    positions = "position_embedding/position_embedding_weights"
    assert weights[positions].shape == (S + 2, N)
    weights[positions] = weights[positions][2:]
    segments = "segment_embedding/segment_embedding_weights"
    assert weights[segments].shape == (1, N)
    weights[segments] = np.repeat(weights[segments], 2, axis=0)
    total, count, _ = expected_costs(weights)
    np.testing.assert_allclose(loss, total / count, rtol=1e-5)


def test_fixed_positions_begin_at_the_first_row():
    with pytest.raises(ConfigError, match="position_embedding_offset must be 0 "):
        run(EVAL, position_embedding_offset=2, position_embedding_type="fixed")


def test_keys_may_begin_as_queries_and_nothing_else_begins_otherwise():
    _, usual = run(EVAL)
    _, alike = run(EVAL, keys_begin_as_queries=True)
    keys = [name for name in usual if "/k_projection/kernel" in name]
    assert len(keys) == L
    for name in usual:
        same = name.replace("k_projection", "q_projection") if name in keys else name
        np.testing.assert_array_equal(alike[name], usual[same], err_msg=name)
    assert not np.array_equal(usual[keys[0]], usual[keys[0].replace("k_proj", "q_proj")])


def test_metrics_count_every_masked_word_once():
    metrics, weights = run(EVAL, wanted="metrics")
    features, labels = batch()
    words, sentences = oracle(features, weights)
    real = features["masked_lm_weights"] > 0
    hits = (words.argmax(-1) == features["masked_lm_ids"])[real]
    total, count, _ = expected_costs(weights)
    assert metrics["eval/accuracy_masked_lm"] == pytest.approx(hits.mean())
    assert metrics["eval/accuracy_cls"] == pytest.approx(
        (sentences.argmax(-1) == labels[:, 0]).mean()
    )
    assert metrics["eval/mlm_perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)


def test_prediction_is_the_likeliest_word_and_its_log_probability():
    predictions, weights = run(PREDICT)
    words, _ = oracle(batch()[0], weights)
    np.testing.assert_array_equal(predictions["predicted_ids"], words.argmax(-1))
    np.testing.assert_allclose(predictions["predicted_log_probs"], words.max(-1), rtol=1e-4)


def test_mixed_precision_is_close_to_float32():
    loss, exact = run(EVAL, mixed_precision=True)[0], run(EVAL)[0]
    assert loss != exact
    np.testing.assert_allclose(loss, exact, rtol=2e-2)


@pytest.mark.parametrize(
    "model",
    [
        {"position_embedding_type": "fixed"},
        {"embedding_size": 4},
        {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "nonlinearity": "relu"},
        {"use_projection_bias_in_attention": False, "use_ffn_bias": False},
        {"use_vsl": True, "enable_gpu_optimizations": True},
    ],
    ids=lambda model: next(iter(model)),
)
def test_variant_has_a_finite_loss_and_gradients_everywhere(model):
    assert np.isfinite(run(TRAIN, **model)[0])


def test_processor_without_next_sentences_needs_a_model_without_them():
    wrong = tree(data_processor="BertMlmOnlyTfRecordsStaticMaskProcessor")
    with pytest.raises(ConfigError, match="has no next sentence labels. Set model.disable_nsp"):
        params_from_dict(Params, wrong)
    wrong["model"]["disable_nsp"] = True
    assert params_from_dict(Params, wrong).train_input.scale_mlm_weights


def test_only_precomputed_scaling_scales_the_weights_of_the_data():
    params = params_from_dict(Params, tree(mlm_loss_scaling="num_masked"))
    assert not params.train_input.scale_mlm_weights


def test_vocabulary_is_counted_and_compared(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    given = tree()
    given["train_input"]["vocab_file"] = str(tmp_path / "vocab.txt")
    with pytest.raises(ConfigError, match=r"vocab_size must equal the 2 lines of .*vocab\.txt"):
        params_from_dict(Params, given)
    del given["train_input"]["vocab_size"]
    assert params_from_dict(Params, given).vocab_size == 2
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ConfigError, match="vocab_size is required"):
        params_from_dict(Params, given)


def test_evaluation_takes_its_shapes_from_training():
    given = {**tree(), "eval_input": {"data_dir": "y", "batch_size": 5}}
    given["eval_input"]["data_processor"] = "BertTfRecordsProcessor"
    params = params_from_dict(Params, given)
    assert params.eval_input.batch_size == 5 and params.eval_input.max_predictions_per_seq == P
    assert params.predict_input == params.eval_input and not params.eval_input.repeat
