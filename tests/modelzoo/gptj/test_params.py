"""Tests of modelzoo/gptj/params.py: what a YAML may say, and what is refused."""

from __future__ import annotations

import pytest

from cerebras_tf.config import schema
from modelzoo.gptj.params import Params


def messages(optimizer=None, **model):
    """What is wrong with a small YAML; and its parameters."""
    section = {"data_processor": "GptTextDataProcessor", "max_sequence_length": 8, "batch_size": 2}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 32}
    tree = {
        "model_name": "gptj",
        "train_input": section,
        "model": {**sizes, **model},
        "optimizer": {"optimizer_type": "adamw", "learning_rate": 0.1, **(optimizer or {})},
    }
    report = schema.Report("f.yaml")
    params = schema.build(Params, Params.with_defaults(tree), report)
    return report.messages, params


def test_initializer_may_be_a_list_of_one():
    one = {"name": "truncated_normal", "stddev": 0.5}
    faults, params = messages(initializer=[one], embedding_initializer=one)
    assert faults == []
    assert params.model.initializer == params.model.embedding_initializer


def test_initializer_of_two_sections_is_refused():
    faults, _ = messages(initializer=[{"name": "constant"}, {"name": "constant"}])
    assert len(faults) == 1 and "model.initializer must be a section" in faults[0]


@pytest.mark.parametrize("rotary_dim", [3, 10, -1])
def test_rotary_dim_that_is_no_part_of_a_head_is_refused(rotary_dim):
    faults, _ = messages(rotary_dim=rotary_dim)
    assert len(faults) == 1 and f"Received: {rotary_dim}" in faults[0]


def test_heads_of_odd_size_are_refused():
    faults, _ = messages(hidden_size=6)
    assert faults == ["f.yaml: model.num_heads must leave heads of even size, not 3. Received: 2."]


def test_embedding_of_another_size_is_refused():
    faults, _ = messages(embedding_size=8)
    assert len(faults) == 1 and "model.embedding_size" in faults[0]


def test_weight_decay_may_be_told_what_to_leave_alone():
    _, params = messages(optimizer={"exclude_from_weight_decay": ["bias"]})
    assert params.optimizer.exclude_from_weight_decay == ("bias",)


def test_blocks_in_turn_need_two_norms_and_rotation_a_base_above_zero():
    faults, _ = messages(use_parallel_residual=False, rotary_emb_base=0.0)
    assert len(faults) == 2
    assert "model.rotary_emb_base must be above 0" in faults[0]
    assert "model.use_untied_layer_norm is required where use_parallel_residual" in faults[1]
