"""Tests of modelzoo/transformer/params.py: what a YAML may say. Imports no TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cerebras_tf.errors import ConfigError
from modelzoo.common.config.params import params_from_dict
from modelzoo.transformer.params import Params

CONFIGS = Path(__file__).parents[3] / "configs"


def params(name="tiny", **changes):
    tree = yaml.safe_load((CONFIGS / f"params_transformer_{name}.yaml").read_text("utf-8"))
    for key, value in changes.items():
        section, _, name = key.partition("__")
        tree[section][name] = value
    return params_from_dict(Params, Params.with_defaults(tree))


def test_evaluation_and_prediction_take_over_vocabulary_lengths_and_buckets():
    small = params("small_multi30k")
    for section in (small.eval_input, small.predict_input):
        assert section.tokenizer_file == small.train_input.tokenizer_file
        assert section.bucket_lengths == (12, 15, 19, 24, 32, 48)
        assert not section.shuffle and not section.repeat
    assert small.eval_input.batch_size == 128 and small.predict_input.batch_size == 50


def test_sources_to_predict_do_not_take_over_the_targets_of_evaluation():
    text = {
        "data_processor": "TransformerDynamicDataProcessor",
        "src_data_dir": "val.s",
        "tgt_data_dir": "val.t",
        "tokenizer_file": "tokenizer.json",
    }
    given = {"train_input": text, "eval_input": text}
    lengths = dict.fromkeys(("src_max_sequence_length", "tgt_max_sequence_length"), 8)
    for section in ({}, {"src_data_dir": "test.s"}, {"src_data_dir": "a", "tgt_data_dir": "b"}):
        tree = {**given, "predict_input": {**lengths, **section}}
        made = Params.with_defaults(tree)["predict_input"]
        assert made["tgt_data_dir"] == (section.get("tgt_data_dir") if section else "val.t")


def test_a_number_of_buckets_makes_equal_steps():
    assert params(train_input__buckets=3).train_input.bucket_lengths == (8, 16, 24)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_input__buckets": [8, 20]}, "must end at the longest sequence length, 24"),
        ({"train_input__buckets": [16, 8, 24]}, "buckets must ascend"),
        ({"model__num_heads": 5}, "must divide hidden_size"),
        ({"model__label_smoothing": 1.0}, "label_smoothing must be below 1"),
        ({"model__max_position_embeddings": 20}, "must not exceed the 20 positions"),
        ({"model__use_projection_bias_in_attention": True}, "must be one of False"),
        ({"train_input__src_vocab_size": 300}, "must be one of 260"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        params(**change)


def test_one_embedding_needs_vocabularies_of_one_size():
    with pytest.raises(ConfigError, match="needs vocabularies of one size"):
        params("base", train_input__tgt_vocab_size=36000)
    unshared = {"model__share_encoder_decoder_embedding": None}
    assert params("base", train_input__tgt_vocab_size=36000, **unshared)
