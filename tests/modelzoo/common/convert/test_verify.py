"""Tests of modelzoo/common/convert/verify.py: it must fail where anything differs."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.errors import CheckpointError
from modelzoo.common.convert.convert import from_tensorflow, to_tensorflow
from modelzoo.common.convert.tensorflow_checkpoint import (
    GLOBAL_STEP,
    TensorFlowReader,
    write_tensorflow,
)
from modelzoo.common.convert.verify import difference, verify_weights
from tests.modelzoo.common.convert.models import CASES, write_model


def change(folder, name, index, value):
    """Writes a folder's checkpoint anew with one value changed."""
    reader = TensorFlowReader(folder)
    tensors = {k: reader.read(k) for k in reader.shapes if k != GLOBAL_STEP}
    tensors[name][index] = value
    write_tensorflow(folder, "model.ckpt-0", iter(tensors.items()))


@pytest.mark.parametrize("name", CASES)
def test_converted_model_is_equal(tmp_path, name):
    tensors = write_model(tmp_path / "theirs", name)
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    count = verify_weights(tmp_path / "theirs", tmp_path / "ours")
    assert count == sum(array.size for array in tensors.values())


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
    with pytest.raises(CheckpointError) as caught:
        verify_weights(tmp_path / "theirs", tmp_path / "ours")
    text = str(caught.value)
    assert "Received: 1 tensors that differ." in text
    assert f"{variable} (" in text
    assert f"{tensor}): 1 of {old.size} differ, by up to 0.5." in text


def test_smallest_possible_change_is_found(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    name = "input_embedding/embedding_weights"
    old = TensorFlowReader(tmp_path / "ours").read(name)[0, 0]
    change(tmp_path / "ours", name, (0, 0), np.nextafter(old, np.float32(9)))
    with pytest.raises(CheckpointError, match=r"embedding_weights.*: 1 of 104 differ"):
        verify_weights(tmp_path / "theirs", tmp_path / "ours")


def test_rounded_weights_are_equal_only_where_rounding_is_allowed(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    from_tensorflow(tmp_path / "ours", tmp_path / "narrow", dtype="bfloat16")
    with pytest.raises(CheckpointError, match="tensors that differ"):
        verify_weights(tmp_path / "narrow", tmp_path / "ours")
    verify_weights(tmp_path / "narrow", tmp_path / "ours", dtype="bfloat16")


def test_bits_are_compared_and_not_values():
    zeros, nan = np.zeros(2, np.float32), np.full(2, np.nan, np.float32)
    assert difference("x", nan, nan) == []
    assert difference("x", zeros, -zeros) == ["x: 2 of 2 differ, by up to 0."]
    assert difference("x", nan, zeros) == ["x: 2 of 2 differ, by up to nan."]
