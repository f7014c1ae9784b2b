"""Tests of modelzoo/bert/model.py: the model against its formula in NumPy, float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError
from modelzoo.bert.model import model_fn
from modelzoo.bert.params import Params
from modelzoo.common.config.params import params_from_dict
from tests.messages import raises
from tests.modelzoo import oracles
from tests.modelzoo.oracles import EVAL, PREDICT, TRAIN, gelu, gelu_exact, log_softmax, numbered

B, S, P, V, N, H, L = 3, 6, 2, 40, 8, 2, 2


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


def run(mode, features=None, metrics=False, **model):
    """The loss (or the predictions, or the metrics) and the variables by name."""
    given, labels = batch()
    return oracles.run(model_fn, tree(**model), mode, features or given, labels, metrics)


def log_probs_of(features, weights, act=gelu):
    """Log-probabilities of words [B, P, V] and of next sentences [B, 2] (Devlin et al. 2018)."""
    oracle = oracles.Oracle(weights, H)
    hidden = np.repeat(features["input_mask"][:, None] == 1, S, axis=1)
    values = oracle.values
    table = values["input_embedding/embedding_weights"]
    x = table[features["input_ids"]] + values["position_embedding/position_embedding_weights"]
    x = x + values["segment_embedding/segment_embedding_weights"][features["segment_ids"]]
    x = oracle.norm(x, "pre_encoder_layer_norm")
    for i in range(L):
        norms = [numbered("encoder/layer_normalization_layer", n) for n in (2 * i, 2 * i + 1)]
        x = x + oracle.attend(x, numbered("encoder/self_attention", i), hidden)
        x = oracle.norm(x, norms[0])
        ffn = numbered("encoder/ffn", i)
        inner = act(oracle.dense(x, f"{ffn}/{numbered('dense_layer', 2 * i)}"))
        x = x + oracle.dense(inner, f"{ffn}/{numbered('dense_layer', 2 * i + 1)}")
        x = oracle.norm(x, norms[1])
    rows = np.take_along_axis(x, features["masked_lm_positions"][..., None], 1)
    rows = oracle.norm(act(oracle.dense(rows, "mlm_layer/mlm_ffn")), "mlm_layer/mlm_layer_norm")
    words = log_softmax(rows @ table.T + values["mlm_layer/mlm_bias"])
    if "cls_layer/cls_dense/cls_dense/kernel" not in values:
        return words, None
    first = np.tanh(oracle.dense(x[:, 0], "cls_layer/cls_dense"))
    return words, log_softmax(oracle.dense(first, "cls_layer/cls_output_dense"))


def expected_costs(weights, act=gelu):
    """Summed cost of the masked words, their number, and the mean cost of the next sentence."""
    features, labels = batch()
    words, sentences = log_probs_of(features, weights, act)
    cost = -oracles.taken(words, features["masked_lm_ids"])
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


def test_rows_before_the_first_position_are_unused_and_one_segment_is_all():
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
    with raises(ConfigError, "position_embedding_offset", "Received: 2"):
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
    metrics, weights = run(EVAL, metrics=True)
    features, labels = batch()
    words, sentences = log_probs_of(features, weights)
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
    words, _ = log_probs_of(batch()[0], weights)
    np.testing.assert_array_equal(predictions["predicted_ids"], words.argmax(-1))
    np.testing.assert_allclose(predictions["predicted_log_probs"], words.max(-1), rtol=1e-4)


def test_mixed_precision_is_close_to_float32():
    loss, exact = run(EVAL, mixed_precision=True)[0], run(EVAL)[0]
    assert loss != exact
    np.testing.assert_allclose(loss, exact, rtol=2e-2)


@pytest.mark.parametrize(
    "model",
    [
        {"position_embedding_type": "fixed", "embedding_size": 4, "nonlinearity": "relu"},
        {
            "dropout_rate": 0.1,
            "attention_dropout_rate": 0.1,
            "use_projection_bias_in_attention": False,
            "use_ffn_bias": False,
            "use_vsl": True,
        },
    ],
    ids=lambda model: next(iter(model)),
)
def test_variant_has_a_finite_loss_and_gradients_everywhere(model):
    assert np.isfinite(run(TRAIN, **model)[0])


def test_processor_without_next_sentences_needs_a_model_without_them():
    wrong = tree(data_processor="BertMlmOnlyTfRecordsStaticMaskProcessor")
    with raises(ConfigError, "BertMlmOnlyTfRecordsStaticMaskProcessor", "model.disable_nsp"):
        params_from_dict(Params, wrong)
    wrong["model"]["disable_nsp"] = True
    assert params_from_dict(Params, wrong).train_input.scale_mlm_weights
    params = params_from_dict(Params, tree(mlm_loss_scaling="num_masked"))
    assert not params.train_input.scale_mlm_weights  # only precomputed scaling does


def test_vocabulary_is_counted_and_compared(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    given = tree()
    given["train_input"]["vocab_file"] = str(tmp_path / "vocab.txt")
    with raises(ConfigError, "vocab_size", " 2 ", "vocab.txt"):
        params_from_dict(Params, given)
    del given["train_input"]["vocab_size"]
    assert params_from_dict(Params, given).vocab_size == 2
    (tmp_path / "vocab.txt").unlink()
    with raises(ConfigError, "vocab_size"):
        params_from_dict(Params, given)
