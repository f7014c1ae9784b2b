"""Compares 20 steps on the wafer with 20 steps of TensorFlow on the host: the BERT of the zoo."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
import yaml

from cerebras_tf.frontend.program_source import CompilingSource
from modelzoo.bert.model import model_fn
from tests.e2e.host_and_wafer import Run, batches, check_parity, estimator

pytestmark = pytest.mark.tf
CONFIG = Path(__file__).parents[2] / "configs" / "params_bert_tiny.yaml"
B, S, P, V = 3, 12, 4, 260


def bert(micro_batches=1, **model):
    """The zoo's model_fn with the tiny configuration, made tinier."""
    tree = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    shapes = {"max_sequence_length": S, "max_predictions_per_seq": P, "batch_size": B}
    tree["train_input"].update(shapes)
    tree["runconfig"]["micro_batches"] = micro_batches
    if not model.get("disable_nsp", True):
        records = {"data_processor": "BertTfRecordsProcessor", "data_dir": "x", "vocab_size": V}
        tree["train_input"] = {**shapes, **records}
        tree["eval_input"] = records
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2, "filter_size": 32}
    tree["model"].update(sizes, **model)

    def with_params(features, labels, mode, params):
        return model_fn(features, labels, mode, tree)

    return with_params


def drawn():
    """Three batches whose sequences end in padding, and so do their lists of masked positions."""
    rng = np.random.default_rng(4)
    made = []
    for _ in range(3):
        lengths = np.array([S, 9, 5])
        mask = (np.arange(S) >= lengths[:, None]).astype(np.int32)
        positions = np.zeros((B, P), np.int32)
        weights = np.zeros((B, P), np.float32)
        for row, (length, count) in enumerate(zip(lengths, (4, 2, 1))):
            positions[row, :count] = np.sort(rng.permutation(length)[:count])
            weights[row, :count] = B / 7
        features = {
            "input_ids": rng.integers(0, V, (B, S)).astype(np.int32),
            "input_mask": mask,
            "segment_ids": (np.arange(S) >= lengths[:, None] // 2).astype(np.int32) * (1 - mask),
            "masked_lm_positions": positions,
            "masked_lm_ids": rng.integers(0, V, (B, P)).astype(np.int32),
            "masked_lm_weights": weights,
        }
        made.append((features, rng.integers(0, 2, (B, 1)).astype(np.int32)))
    return made


PAIRS = {"disable_nsp": False, "use_segment_embedding": True}
ALONE = {"disable_nsp": True, "encoder_nonlinearity": "gelu_exact"}
ROBERTA = {
    **ALONE,
    "use_segment_embedding": True,
    "position_embedding_offset": 2,
    "num_segments": 1,
}


@pytest.mark.parametrize(
    "model", [PAIRS, ALONE, ROBERTA], ids=["mlm_and_nsp", "mlm_only", "roberta"]
)
def test_tiny_bert_trains_as_on_the_host(model, tmp_path):
    host, _ = check_parity(bert(**model), drawn(), tmp_path)
    assert host.losses[-1] < host.losses[0]


@pytest.mark.parametrize("model", [PAIRS, ALONE], ids=["mlm_and_nsp", "mlm_only"])
def test_tiny_bert_is_evaluated_as_on_the_host(model, tmp_path):
    results = []
    for use_cs in (False, True):
        made = estimator(bert(**model), tmp_path / "run", Run())
        if not use_cs:
            made.train(batches(drawn()), max_steps=1, use_cs=False)
        results.append(made.evaluate(batches(drawn()), steps=3, use_cs=use_cs))
    host, wafer = results
    expected = {"loss", "global_step", "eval/accuracy_masked_lm", "eval/mlm_perplexity"}
    assert set(host) == expected | ({"eval/accuracy_cls"} if model is PAIRS else set())
    assert set(wafer) == set(host)
    for name, value in host.items():
        np.testing.assert_allclose(wafer[name], value, rtol=1e-5, err_msg=name)


def test_attention_and_the_loss_of_the_words_are_fused(tmp_path, monkeypatch):
    """With the padding and dropout in the one, and the bias in the other."""
    ops = []

    def compiled(step, types):
        program = of_step(step, types)
        ops.extend(instruction.op for instruction in program.instructions())
        return program

    of_step = CompilingSource._compile_static
    monkeypatch.setattr(CompilingSource, "_compile_static", compiled)
    model = bert(**PAIRS, attention_dropout_rate=0.1, dropout_rate=0.1)
    made = estimator(model, tmp_path / "run", Run())
    made.train(batches(drawn()), max_steps=1, use_cs=True)
    assert ops.count("packed_attention") == ops.count("packed_attention_grad") == 2
    assert ops.count("linear_softmax_xent_train") == 2
    assert not {"softmax", "sparse_softmax_xent"} & set(ops)


def test_what_stands_in_padding_changes_no_loss(tmp_path):
    """Ids at padded positions, and words of the padding of the list, are never seen."""
    changed = []
    for features, labels in drawn():
        features = dict(features)
        padding = features["input_mask"] == 1
        features["input_ids"] = np.where(padding, 77, features["input_ids"])
        unused = features["masked_lm_weights"] == 0
        features["masked_lm_ids"] = np.where(unused, 78, features["masked_lm_ids"])
        changed.append((features, labels))
    losses = []
    for name, arrays in (("plain", drawn()), ("changed", changed)):
        made = estimator(bert(**PAIRS), tmp_path / name, Run())
        with tf.Graph().as_default():
            made.train(batches(arrays), max_steps=1, use_cs=True)
        losses.append(made.evaluate(batches(arrays), steps=3, use_cs=True)["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)
