"""Tests of modelzoo/bert/fine_tuning/sections.py: rules between sections, without TensorFlow."""

from __future__ import annotations

import pytest

from cerebras_tf.config.schema import as_tree
from cerebras_tf.errors import ConfigError
from modelzoo.bert.fine_tuning.classifier.params import Params
from modelzoo.common.config.params import params_from_dict
from tests.modelzoo.bert.fine_tuning.made_data import SIZES


def tree(**train_input):
    section = {
        "data_processor": "Sst2DataProcessor",
        "data_dir": "sst2",
        "vocab_file": "absent.txt",
        "vocab_size": 30,
        "max_sequence_length": 24,
        "batch_size": 4,
    }
    return {
        "model_name": "bert.fine_tuning.classifier",
        "train_input": {**section, **train_input},
        "eval_input": {"data_dir": "sst2"},
        "model": dict(SIZES),
        "optimizer": {"optimizer_type": "adam", "learning_rate": 0.1},
    }


def test_evaluation_and_prediction_read_as_training_does():
    params = params_from_dict(Params, tree(buckets=[8], do_lower=False))
    for section in (params.eval_input, params.predict_input):
        assert section.buckets == (8,) and not section.do_lower and section.batch_size == 4
        assert not section.shuffle and not section.repeat


def test_what_is_saved_is_read_again():
    params = params_from_dict(Params, tree())
    assert params_from_dict(Params, as_tree(params)) == params


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("buckets", [16, 8], r"buckets must ascend within max_sequence_length \(24\)"),
        ("buckets", [8, 32], r"buckets must ascend within max_sequence_length \(24\)"),
        ("vocab_file", None, "vocab_file is required"),
        ("labels", ["0", "1", "2"], "num_cls_classes must be 3, the labels of train_input"),
        ("data_processor", "TsvDataProcessor", "text_columns is required with TsvData"),
        ("text_columns", ["a", "b", "c"], "must name one column, or two"),
        ("text_columns", ["a", "a"], "text_columns must name two different columns"),
        ("max_sequence_length", 2, r"max_sequence_length must be at least 3, for \[CLS\] a \[SEP"),
    ],
)
def test_mistake_is_told(key, value, told):
    with pytest.raises(ConfigError, match=told):
        params_from_dict(Params, tree(**{key: value}))


def test_pairs_need_a_token_of_each():
    content = tree(text_columns=["a", "b"], max_sequence_length=4)
    told = r"at least 5, for \[CLS\] a \[SEP\] b \[SEP\]. Raise it.* Received: 4"
    with pytest.raises(ConfigError, match=told):
        params_from_dict(Params, content)


def test_inputs_longer_than_the_positions_are_told():
    content = tree()
    content["model"]["max_position_embeddings"] = 16
    with pytest.raises(ConfigError, match="max_sequence_length must not exceed the 16 positions"):
        params_from_dict(Params, content)


def test_records_to_predict_from_are_refused_where_the_file_names_them():
    content = tree(data_processor="GlueTfRecordsProcessor")
    assert params_from_dict(Params, content).predict_input is None
    content["predict_input"] = {"data_dir": "sst2", "data_processor": "GlueTfRecordsProcessor"}
    told = "predict_input.data_processor must be one of .* Received: 'GlueTfRecordsProcessor'"
    with pytest.raises(ConfigError, match=told):
        params_from_dict(Params, content)
