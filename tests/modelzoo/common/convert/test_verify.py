"""Comparing weights and logits of a conversion fails where anything differs."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")
pytest.importorskip("torch", reason="torch is a test extra")
pytest.importorskip("transformers", reason="transformers is a test extra")

from cerebras_tf.errors import CheckpointError
from modelzoo.common.convert.convert import from_tensorflow, to_tensorflow
from modelzoo.common.convert.tensorflow_checkpoint import (
    GLOBAL_STEP,
    TensorFlowReader,
    write_tensorflow,
)
from modelzoo.common.convert.verify import compare_logits, difference, verify_weights
from tests.messages import raises
from tests.modelzoo.common.convert.models import write_model


def change(folder, name, index, value):
    """Writes a folder's checkpoint again with one value changed."""
    reader = TensorFlowReader(folder)
    tensors = {k: reader.read(k) for k in reader.shapes if k != GLOBAL_STEP}
    tensors[name][index] = value
    write_tensorflow(folder, "model.ckpt-0", iter(tensors.items()))


@pytest.mark.parametrize(
    "name, variable, tensor",
    [
        ("gpt2", "decoder/self_attention_2/k_projection/k_projection/bias", "h.2.attn.c_attn.bias"),
        ("gpt_neox", "gptj_decoder/1/attn/q_proj/q_proj/kernel", "query_key_value.weight"),
        ("bert", "mlm_layer/mlm_bias", "cls.predictions.bias"),
    ],
)
def test_one_changed_value_is_found_and_named(tmp_path, name, variable, tensor):
    write_model(tmp_path / "theirs", name)
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    old = TensorFlowReader(tmp_path / "ours").read(variable)
    place = (1,) * old.ndim
    change(tmp_path / "ours", variable, place, old[place] + 0.5)
    with raises(CheckpointError, "Received: 1 ", variable, f"{tensor}): 1 of {old.size}", "0.5"):
        verify_weights(tmp_path / "theirs", tmp_path / "ours")


def test_rounded_weights_are_equal_only_where_rounding_is_allowed(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    from_tensorflow(tmp_path / "ours", tmp_path / "narrow", dtype="bfloat16")
    with raises(CheckpointError, "differ"):
        verify_weights(tmp_path / "narrow", tmp_path / "ours")
    verify_weights(tmp_path / "narrow", tmp_path / "ours", dtype="bfloat16")


def test_bits_are_compared_and_not_values():
    zeros, nan = np.zeros(2, np.float32), np.full(2, np.nan, np.float32)
    assert difference("x", nan, nan) == []
    assert difference("x", zeros, -zeros) == ["x: 2 of 2 differ, by up to 0."]
    assert difference("x", zeros, np.nextafter(zeros, np.float32(9)))[0].startswith("x: 2 of 2")
    assert difference("x", nan, zeros) == ["x: 2 of 2 differ, by up to nan."]


def test_exchanged_queries_and_values_are_found(tmp_path):
    write_model(tmp_path / "theirs", "gpt2", resid_pdrop=0.0)
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    assert compare_logits(tmp_path / "theirs", tmp_path / "ours")["logits"] < 2e-4
    reader = TensorFlowReader(tmp_path / "ours")
    tensors = {name: reader.read(name) for name in reader.shapes if name != GLOBAL_STEP}
    first, second = (f"decoder/self_attention/{k}_projection/{k}_projection/kernel" for k in "qv")
    tensors[first], tensors[second] = tensors[second], tensors[first]
    write_tensorflow(tmp_path / "ours", "model.ckpt-0", iter(tensors.items()))
    with raises(CheckpointError, "logits differ by"):
        compare_logits(tmp_path / "theirs", tmp_path / "ours")


def test_weights_that_are_no_numbers_are_no_success(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    reader = TensorFlowReader(tmp_path / "ours")
    tensors = {name: reader.read(name) for name in reader.shapes if name != GLOBAL_STEP}
    tensors["input_embedding/embedding_weights"][:] = np.nan
    write_tensorflow(tmp_path / "ours", "model.ckpt-0", iter(tensors.items()))
    with raises(CheckpointError, "logits differ by nan"):
        compare_logits(tmp_path / "theirs", tmp_path / "ours")
