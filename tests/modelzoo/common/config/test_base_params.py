"""Tests of what the YAML of every model has, and of what its input sections take over."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.config import registry
from modelzoo.common.config.base_params import INPUT_SECTIONS, BaseParams, inherit_inputs
from modelzoo.common.config.params import load_params

TINY = Path(__file__).parents[4] / "configs" / "params_gpt3_tiny.yaml"


@pytest.mark.parametrize("name", registry.model_names())
def test_every_model_has_the_common_sections_and_no_others(name):
    cls = registry.params_class(name, "here")
    assert issubclass(cls, BaseParams)
    names = [field.name for field in dataclasses.fields(cls)]
    assert names == [field.name for field in dataclasses.fields(BaseParams)]
    for field in dataclasses.fields(cls):
        built = field.name in (*INPUT_SECTIONS, "sparsity")  # those that may be left out
        assert ("build" in field.metadata) == built
    assert "data_processor" in cls.INHERITED_KEYS


def test_inputs_inherit_the_named_keys_and_of_another_processor_their_shapes():
    train = {"data_processor": "A", "batch_size": 4, "data_dir": "x", "buckets": [3]}
    tree = inherit_inputs({"train_input": train, "eval_input": {}}, ("buckets", "batch_size"))
    assert tree["eval_input"] == {
        "buckets": [3],
        "batch_size": 4,
        "shuffle": False,
        "repeat": False,
    }
    assert tree["predict_input"] == tree["eval_input"]
    other = {"train_input": train, "eval_input": {"data_processor": "B"}}
    tree = inherit_inputs(other, ("buckets", "batch_size"))
    assert tree["eval_input"]["batch_size"] == 4 and "buckets" not in tree["eval_input"]


def test_an_evaluation_that_never_ends_is_refused():
    with pytest.raises(ConfigError, match="eval_input.repeat must be False"):
        load_params(str(TINY), {"eval_input.repeat": True})


def test_a_step_reads_the_batches_of_all_wafers_and_parts(monkeypatch):
    params = load_params(str(TINY))
    assert (params.batches_per_step, params.global_batch_size) == (1, 24)
    several = {"runconfig.num_csx": 4, "optimizer.grad_accum_steps": 3}
    params = load_params(str(TINY), several)
    assert (params.batches_per_step, params.global_batch_size) == (12, 288)
    assert params.batches_in_turn == 12
    monkeypatch.setenv("CEREBRAS_TF_WAFERS", "2")
    assert params.batches_in_turn == 6
