"""Params files in the style of the original zoo: no model_name, and keys that nothing reads."""

from __future__ import annotations

import logging

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.config.params import load_params, read_yaml
from tests.messages import raises

INPUT = "{{data_processor: {0}, data_dir: ./data, max_sequence_length: 16, batch_size: 2, {1}}}"
SIZES = "hidden_size: 8, num_hidden_layers: 2, num_heads: 2, filter_size: 16, mixed_precision: True"
OPTIMIZER = "optimizer: {optimizer_type: adam, learning_rate: 1e-3, loss_scaling_factor: dynamic}"
GPT = INPUT.format("GptTfRecordsProcessor", "vocab_size: 50")
BERT = INPUT.format("BertTfRecordsProcessor", "vocab_size: 50, max_predictions_per_seq: 3")
TASK = "pretrain_params_path: ../../configs/params_pretraining.yaml"


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a file and returns its path."""

    def write_sections(train_input, model, folder="mine", others="", optimizer=OPTIMIZER):
        path = tmp_path / folder / "configs" / "params_x.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        sections = f"train_input: {train_input}\nmodel: {{{model}}}\n{optimizer}\n"
        path.write_text(f"{sections}runconfig: {{max_steps: 5}}\n{others}")
        return path

    return write_sections


@pytest.mark.parametrize(
    ("train_input", "model", "folder", "found"),
    [
        (GPT, f"{SIZES}, use_position_embedding: True", "mine", "gpt3"),
        (GPT, f"{SIZES}, rotary_dim: 4, use_cache: False", "mine", "gptj"),
        (GPT, SIZES, "tf/gptj", "gptj"),
        (GPT, SIZES, "tf/gpt2", "gpt3"),
        (BERT, f"{SIZES}, use_vsl: True", "mine", "bert"),
        # The folder is of another model: the keys decide.
        (BERT, SIZES, "tf/gptj", "bert"),
    ],
)
def test_a_model_is_found_by_keys_or_folder(write, train_input, model, folder, found):
    assert load_params(write(train_input, model, folder)).model_name == found


def test_a_task_takes_the_model_of_a_pretraining_without_model_name(write):
    pretraining = write(BERT, f"{SIZES}, layer_norm_epsilon: 1e-5", "bert")
    pretraining.rename(pretraining.with_name("params_pretraining.yaml"))
    section = INPUT.format("BertSumTfRecordsProcessor", "max_cls_tokens: 4")
    path = write(section, TASK, "bert/fine_tuning/extractive_summarization")
    path.write_text(path.read_text().replace("../../", "../../../"))
    params = load_params(path)
    assert params.model_name == "bert.fine_tuning.extractive_summarization"
    assert (params.model.layer_norm_epsilon, params.vocab_size) == (1e-5, 50)


@pytest.mark.parametrize(
    ("train_input", "folder", "given", "facts"),
    [
        (GPT, "mine", {}, ("model_name is required", "gpt3, gptj")),
        (GPT, "bert", {}, ("model_name is required", "gpt3, gptj")),
        ("{data_processor: Mine}", "mine", {}, ("model_name is required", "none")),
        ("{data_processor: T5DynamicDataProcessor}", "tf/t5", {}, ("T5", "own run.py")),
        (GPT, "mine", {"settings": [("model_name", "unet")]}, ("U-Net", "own run.py")),
    ],
)
def test_a_model_that_is_not_determined_or_lacking_is_named(
    write, train_input, folder, given, facts
):
    with raises(ConfigError, *facts):
        load_params(write(train_input, SIZES, folder), **given)


def test_keys_that_nothing_reads_are_logged_in_one_line(write, caplog):
    adam = OPTIMIZER.replace("adam,", "adam, beta_1: 0.9,")
    section = GPT.replace("}", ", mixed_precision: True, add_special_tokens: False}")
    with caplog.at_level(logging.WARNING):
        params = load_params(write(section, f"{SIZES}, vocab_size: 50", "gpt2", "", adam))
    assert params == load_params(write(GPT, SIZES, "gpt2"))
    (record,) = caplog.records
    for key in ("train_input.mixed_precision", "model.vocab_size (", "optimizer.beta_1"):
        assert key in record.getMessage()


@pytest.mark.parametrize(
    ("train_input", "model", "adam", "key"),
    [
        (GPT, f"{SIZES}, rotary_dim: 4, use_cache: True", "adam", "model.use_cache must be False"),
        (GPT, f"{SIZES}, rotary_dim: 4, vocab_size: 9", "adam", "model.vocab_size must be train"),
        (BERT, SIZES, "adam, beta_1: 0.5", "optimizer.beta_1 must be 0.9: beta1 is"),
        (BERT.replace("}", ", add_special_tokens: True}"), SIZES, "adam", "unknown key"),
    ],
)
def test_a_value_that_would_change_numbers_is_refused(write, train_input, model, adam, key):
    path = write(train_input, model, optimizer=OPTIMIZER.replace("adam", adam))
    with raises(ConfigError, key, "Received: "):
        load_params(path)


def test_a_vocabulary_size_without_an_input_section_is_no_other_mistake(write):
    path = write("null", f"{SIZES}, vocab_size: 50")
    with raises(ConfigError, "train_input must be a section"):
        load_params(path, model_name="gpt3")


@pytest.mark.parametrize("second", ["0", "1", "'0'"])
def test_a_key_may_be_repeated_with_the_same_value(tmp_path, second):
    path = tmp_path / "params.yaml"
    path.write_text(f"model:\n  precision_opt_level: 0\n  precision_opt_level: {second}\n")
    if second == "0":
        assert read_yaml(path)[0] == {"model": {"precision_opt_level": 0}}
    else:
        with raises(ConfigError, "model.precision_opt_level must occur only once"):
            read_yaml(path)


def test_a_key_with_a_dot_is_the_same_as_one_in_a_section(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("model.hidden_size: 8\nmodel:\n  hidden_size: 8\n")
    with raises(ConfigError, "model.hidden_size must occur only once"):
        read_yaml(path)
