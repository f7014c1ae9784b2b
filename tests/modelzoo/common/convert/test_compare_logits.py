"""Tests of modelzoo/common/convert/compare_logits.py: a wrong conversion must fail.

That right ones pass is tested with each model, in its package's test_hugging_face.py.
"""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")
pytest.importorskip("torch", reason="torch is a test extra")
pytest.importorskip("transformers", reason="transformers is a test extra")

from cerebras_tf.errors import CheckpointError
from modelzoo.common.convert.convert import to_tensorflow
from modelzoo.common.convert.tensorflow_checkpoint import (
    GLOBAL_STEP,
    TensorFlowReader,
    write_tensorflow,
)
from modelzoo.common.convert.verify import compare_logits, random_batch
from tests.modelzoo.common.convert.models import params_of, write_model


def test_exchanged_queries_and_values_are_found(tmp_path):
    write_model(tmp_path / "theirs", "gpt2", resid_pdrop=0.0)
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    assert compare_logits(tmp_path / "theirs", tmp_path / "ours")["logits"] < 2e-4
    reader = TensorFlowReader(tmp_path / "ours")
    tensors = {name: reader.read(name) for name in reader.shapes if name != GLOBAL_STEP}
    first, second = (f"decoder/self_attention/{k}_projection/{k}_projection/kernel" for k in "qv")
    tensors[first], tensors[second] = tensors[second], tensors[first]
    write_tensorflow(tmp_path / "ours", "model.ckpt-0", iter(tensors.items()))
    with pytest.raises(CheckpointError, match="must compute what .* Received: logits differ by"):
        compare_logits(tmp_path / "theirs", tmp_path / "ours")


def test_weights_that_are_no_numbers_are_no_success(tmp_path):
    write_model(tmp_path / "theirs", "gpt2")
    to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    reader = TensorFlowReader(tmp_path / "ours")
    tensors = {name: reader.read(name) for name in reader.shapes if name != GLOBAL_STEP}
    tensors["input_embedding/embedding_weights"][:] = np.nan
    write_tensorflow(tmp_path / "ours", "model.ckpt-0", iter(tensors.items()))
    with pytest.raises(CheckpointError, match="logits differ by nan"):
        compare_logits(tmp_path / "theirs", tmp_path / "ours")


def test_random_batch_has_every_kind_of_token():
    batch = random_batch(params_of("bert").train_input, 0, {})
    assert batch["input_mask"].sum() == 2
    assert set(np.unique(batch["segment_ids"])) == {0, 1}
    assert batch["input_ids"].max() < 13


def test_random_tokens_of_roberta_are_no_padding_and_of_one_segment():
    config = {"model_type": "roberta", "pad_token_id": 12, "type_vocab_size": 1}
    batch = random_batch(params_of("bert").train_input, 0, config)
    assert 0 <= batch["input_ids"].min() <= batch["input_ids"].max() < 12
    assert not batch["segment_ids"].any()
