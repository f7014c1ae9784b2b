"""Loading a YAML, overriding, writing it back, and what all models' sections have."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import yaml

from cerebras_tf.config import schema
from cerebras_tf.errors import ConfigError
from modelzoo.common.config import registry
from modelzoo.common.config.base_params import INPUT_SECTIONS, BaseParams, inherit_inputs
from modelzoo.common.config.params import (
    load_params,
    read_yaml,
    resolve_path,
    save_params,
    saved_difference,
    saved_runconfig,
)
from modelzoo.common.config.sections import OptimizerParams
from tests.messages import names, raises
from tests.swarmx.ranks import join_job

TINY = """\
model_name: gpt3
train_input:
    data_processor: GptTextDataProcessor
    max_sequence_length: 16
    batch_size: 2
model:
    hidden_size: 8
    num_hidden_layers: 1
    num_heads: 2
    filter_size: 16
    layer_norm_epsilon: 1e-6
optimizer:
    optimizer_type: adamw
    learning_rate: 1e-3
runconfig:
    max_steps: 5
"""


@pytest.fixture
def write(tmp_path):
    def write_text(text):
        path = tmp_path / "params_x.yaml"
        path.write_text(text)
        return str(path)

    return write_text


def test_command_line_wins_over_yaml_and_yaml_over_defaults(write):
    path = write(TINY)
    assert load_params(path).runconfig.max_steps == 5
    assert load_params(path, {"runconfig.max_steps": 7}).runconfig.max_steps == 7
    assert load_params(path, {"runconfig.max_steps": None}).runconfig.max_steps == 5
    assert load_params(path).runconfig.save_checkpoints_steps == 1000


def test_the_mode_of_the_command_line_wins_over_the_files(write):
    # params.yaml of a model_dir has the mode that wrote it, and is evaluated as it is.
    path = write(TINY.replace("    max_steps: 5", "    max_steps: 5\n    mode: train"))
    assert load_params(path).runconfig.mode == "train"
    assert load_params(path, {"runconfig.mode": "eval"}).runconfig.mode == "eval"


def test_load_params_raises_every_mistake_at_once_with_its_line(write):
    text = TINY.replace("    num_hidden_layers: 1", "    num_layers: 24")
    path = write(text.replace("    batch_size: 2", "    batch_size: two") + "eval_input: {}\n")
    with pytest.raises(ConfigError) as error:
        load_params(path)
    lines = str(error.value).splitlines()
    assert len(lines) == 3  # eval_input inherits its mistake
    assert names(lines, path, "model.num_layers", "model.num_hidden_layers?", 24, "Line 8.")
    assert names(lines, "train_input.batch_size", "'two'", "Line 5.")
    assert names(lines, "model.num_hidden_layers is required", "Line 6.")


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        (["model.hidden_size=16"], "model.hidden_size", 16),
        (["model.hidden_size=16", "model.hidden_size=32"], "model.hidden_size", 32),
        (["model.layer_norm_epsilon=1e-3"], "model.layer_norm_epsilon", 1e-3),
        (["model.mixed_precision=true"], "model.mixed_precision", True),
        (["model.max_position_embeddings=null"], "model.max_position_embeddings", None),
        (["optimizer.exclude_from_weight_decay=[a, b]"], "optimizer.exclude_from_weight_decay",
         ("a", "b")),
        (["optimizer.learning_rate={scheduler: Constant, learning_rate: 0.5}"],
         "optimizer.learning_rate.0.learning_rate", 0.5),
        (["model.initializer.name=constant", "model.initializer.value=2"],
         "model.initializer.value", 2.0),
        (["sparsity.mask_type=topk"], "sparsity.mask_type", "topk"),
        (["runconfig.max_steps=9"], "runconfig.max_steps", 9),
        (["train_input.shuffle_seed=7", "eval_input={}"], "eval_input.batch_size", 2),
    ],
)  # fmt: skip
def test_set_replaces_keys_of_the_file_and_is_saved(write, tmp_path, settings, key, value):
    pairs = [tuple(text.split("=", 1)) for text in settings]
    params = load_params(write(TINY), settings=pairs)
    found = params
    for name in key.split("."):
        found = found[int(name)] if name.isdecimal() else getattr(found, name)
    assert found == value
    save_params(params, tmp_path)
    assert load_params(tmp_path / "params.yaml") == params


@pytest.mark.parametrize(
    ("key", "text", "facts"),
    [
        ("model.hiden_size", "8", ("unknown key", "Did you mean model.hidden_size?")),
        ("modle.hidden_size", "8", ("unknown key modle", "Did you mean model?")),
        ("model.hidden_size", "eight", ("an integer", "'eight'")),
        ("train_input.batch_size", "0", ("at least 1",)),
        ("model.initializer", "{name: constant, value: x}", ("model.initializer.value", "'x'")),
        ("optimizer.learning_rate.steps", "5", ("optimizer.learning_rate must be a section",)),
        ("model.nonlinearity", "[", ("YAML", "'['")),
        ("model_name", "gpt4", ("gpt3", "'gpt4'")),
        ("runconfig.max_steps", "9", ("9", "7")),
    ],
)
def test_a_wrong_set_is_refused_by_its_name(write, key, text, facts):
    with raises(ConfigError, f"--set {key}", *facts):
        load_params(write(TINY), {"runconfig.max_steps": 7}, settings=[(key, text)])


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a: 1\nb: [1, 2\n", ("line 3", "YAML")),
        ("a:\n\tb: 1\n", ("line 2", "YAML")),
        ("a: 1\nb 2\nc: 3\n", ("line 3", "YAML")),
        ("a: *.txt\n", ("line 1", "YAML")),
        ("a: 1\n---\nb: 2\n", ("line 2", "another document")),
        ("\x00\x01", ("YAML",)),
        ("model:\n    a: 1\n    a: 2\n", ("model.a", "lines 2 and 3")),
        ("a: !!int abc\n", ("YAML", "abc")),
        ("x: &a {b: *a}\n", ("too deep",)),
        ("a: 1\nx: " + "{a: " * 2000 + "1" + "}" * 2000, ("too deep",)),
        ("# ---\n", ("sections of keys", "nothing")),
        ("5", ("sections of keys", "5")),
    ],
)
def test_a_text_that_holds_no_sections_is_refused(write, text, facts):
    path = write(text)
    with raises(ConfigError, path, "Received: ", *facts):
        read_yaml(path)


def test_a_file_that_is_missing_is_named(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with raises(ConfigError, path):
            load_params(path)


def test_numbers_are_decimal_and_dates_are_texts(write):
    text = "a: 1_000\nb: 010\nc: 1:30\nd: 0x1F\ne: 0.5\nf: 2022-13-45\ng: -5\nh: 1:30.5\n"
    tree, _ = read_yaml(write(text))
    assert list(tree.values()) == [1000, 10, "1:30", 31, 0.5, "2022-13-45", -5, "1:30.5"]


def test_model_name_may_come_from_the_caller(write):
    path = write(TINY.replace("model_name: gpt3\n", ""))
    assert load_params(path, model_name="gpt3").model_name == "gpt3"


def test_relative_path_is_found_from_folder_yaml_and_repository_root(tmp_path, monkeypatch):
    root, elsewhere = tmp_path / "repo", tmp_path / "elsewhere"
    (root / "configs").mkdir(parents=True)
    (root / "setup.py").touch()
    (root / "data").mkdir()
    (root / "configs" / "near").mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert resolve_path("data", root / "configs") == str(root / "data")
    assert resolve_path("near", root / "configs") == str(root / "configs" / "near")
    (elsewhere / "data").mkdir()
    assert resolve_path("data", root / "configs") == str(elsewhere / "data")
    assert resolve_path("nowhere", root / "configs") == "nowhere"


def test_difference_from_saved_parameters_is_a_line_a_key(write, tmp_path):
    pieces = "[{scheduler: Linear, initial_learning_rate: 0.1, end_learning_rate: 0, steps: %d}]"
    before = load_params(write(TINY.replace("learning_rate: 1e-3", "learning_rate: " + pieces % 5)))
    assert saved_difference(before, tmp_path) == []
    save_params(before, tmp_path)
    assert saved_difference(before, tmp_path) == []
    changed = TINY.replace("num_hidden_layers: 1", "num_hidden_layers: 2")
    changed = changed.replace("learning_rate: 1e-3", "learning_rate: " + pieces % 7)
    after = load_params(write(changed.replace("max_steps: 5", "max_steps: null")))
    head = [f"--- {tmp_path}/params.yaml", "+++ given"]
    model = ["-model.num_hidden_layers: 1", "+model.num_hidden_layers: 2"]
    assert saved_difference(after, tmp_path) == [
        *head,
        *model,
        "-optimizer.learning_rate[0].steps: 5",
        "+optimizer.learning_rate[0].steps: 7",
        "-runconfig.max_steps: 5",
        "+runconfig.max_steps: null",
    ]
    assert saved_difference(after, tmp_path, ["model"]) == [*head, *model]


@pytest.mark.parametrize("content", ["# ---\n", "{}", "runconfig: 5"])
def test_a_saved_file_that_no_run_wrote_is_named(tmp_path, content):
    (tmp_path / "params.yaml").write_text(content)
    with raises(ConfigError, "params.yaml", "sections" if "r" not in content else "runconfig"):
        saved_runconfig(tmp_path)


COSINE = {"scheduler": "Cosine", "initial_learning_rate": 1.0}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"model": None}, ("model",)),
        ({"model.hidden_size": 16.5}, ("model.hidden_size", "16.5")),
        ({"model.hidden_size": True}, ("model.hidden_size",)),
        ({"model.num_heads": 3}, ("model.num_heads", "hidden_size", 3)),
        ({"model.num_hidden_layers": 10**9}, ("model.num_hidden_layers", 10001)),
        ({"model.nonlinearity": "swish"}, ("model.nonlinearity", "gelu", "'swish'")),
        ({"model.dropout_rate": 1.0}, ("model.dropout_rate", "1.0")),
        ({"model.initializer": {"name": "normal"}}, ("model.initializer", "'normal'")),
        ({"model.max_position_embeddings": 8}, ("max_sequence_length", 8)),
        ({"optimizer.learning_rate": {**COSINE, "scheduler": "Cosin"}}, ("Cosine?",)),
        ({"optimizer.learning_rate": COSINE}, ("decay_steps",)),
        ({"optimizer.optimizer_type": "adamx"}, ("'adamx'", "adamw")),
        (
            {"optimizer.max_gradient_norm": 1.0, "optimizer.max_gradient_value": 1.0},
            ("max_gradient_value", "max_gradient_norm"),
        ),
        ({"optimizer.exclude_from_weight_decay": ["("]}, ("exclude_from_weight_decay",)),
        ({"optimizer.loss_scaling_factor": "dynamo"}, ("loss_scaling_factor", "'dynamo'")),
        ({"train_input.max_sequence_length": 2**30}, ("max_sequence_length", "1073741824")),
        ({"train_input.data_processor": "GptTextProcessor"}, ("GptTextDataProcessor?",)),
        ({"train_input.eval_fraction": 2.0}, ("eval_fraction", "2.0")),
        *(({"train_input.data_dir": path}, ("data_dir",)) for path in ("", [], ["a\0b"], 5)),
        ({"eval_input": {"repeat": True}}, ("eval_input.repeat",)),
        ({"eval_input": {"max_sequence_length": 64}}, ("eval_input", "max_sequence_length")),
        ({"eval_input": {"vocab_size": 300}}, ("eval_input", "vocab_size")),
        ({"model_name": ["gpt3"]}, ("model_name",)),
        ({"runconfig": "max_steps 2"}, ("runconfig",)),
        ({"runconfig.max_steps": -1}, ("runconfig.max_steps", "-1")),
        ({"runconfig.mode": "trian"}, ("train?",)),
        ({"runconfig.keep_best_checkpoint": {"mode": "best"}}, ("mode", "min, max", "'best'")),
        ({"csconfig": {"use_cbfloat16": True}}, ("use_cbfloat16", "model.mixed_precision")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_values_and_keys_that_contradict_one_another_are_named(write, changes, facts):
    tree = yaml.safe_load(TINY)
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if name:
            tree[section][name] = value
        else:
            tree[section] = value
    path = write(yaml.safe_dump(tree))
    with raises(ConfigError, path, *facts):
        load_params(path)


TINY_CONFIG = Path(__file__).parents[4] / "configs" / "params_gpt3_tiny.yaml"


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


def test_a_step_reads_the_batches_of_all_wafers_and_accumulations(monkeypatch, tmp_path):
    params = load_params(str(TINY_CONFIG))
    assert (params.batches_per_step, params.global_batch_size) == (1, 24)
    several = {"runconfig.num_csx": 4, "optimizer.grad_accum_steps": 3}
    params = load_params(str(TINY_CONFIG), several)
    assert (params.batches_per_step, params.global_batch_size) == (12, 288)
    assert params.batches_per_process == 12
    join_job(monkeypatch, tmp_path)
    assert params.batches_per_process == 6


def messages(**keys):
    report = schema.Report("f.yaml")
    schema.build(OptimizerParams, {"learning_rate": 1e-3, **keys}, report)
    return report.messages


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("beta1", -0.9),
        ("beta2", 1.0),
        ("epsilon", math.nan),
        ("momentum", -0.9),
        ("initial_loss_scale", 0),
        ("loss_scaling_factor", math.inf),
        ("learning_rate", math.nan),
        (
            "learning_rate",
            {"scheduler": "PiecewiseConstant", "boundaries": [5], "values": [0.1, -0.1]},
        ),
        ("grad_accum_steps", 0),
    ],
)
def test_numbers_that_no_optimizer_can_take_are_refused(key, value):
    (message,) = messages(optimizer_type="adamw", **{key: value})
    assert names(message, f"f.yaml: {key}", "Received: ")


SCALES = {"min_loss_scale": 2.0, "max_loss_scale": 4.0, "overflow_tolerance": 0.1}
FIXED = {**SCALES, "initial_loss_scale": 8.0, "steps_per_increase": 5}
ADAM = {"beta1": 0.5, "beta2": 0.5, "epsilon": 0.1, "use_bias_correction": True}


@pytest.mark.parametrize(
    ("kind", "keys", "others", "uses"),
    [
        ("sgd", FIXED, {"loss_scaling_factor": 1024.0}, "dynamic"),
        ("sgd", SCALES, {"loss_scaling_factor": "tf_dynamic"}, "dynamic"),
        ("sgd", FIXED, {"loss_scaling_factor": "dynamic"}, None),
        ("sgd", ADAM, {}, "adam or adamw"),
        ("sgd", {"weight_decay_rate": 0.1}, {}, "adamw"),
        ("adamw", {"momentum": 0.9, "decay": 0.5}, {}, "rmsprop"),
        ("adam", ADAM, {}, None),
        ("adamw", ADAM, {}, None),
        ("adam", {"epsilon_mode": "corrected"}, {"use_bias_correction": True}, "adamw"),
        ("adamw", {"epsilon_mode": "corrected"}, {}, "use_bias_correction"),
    ],
)
def test_keys_without_effect_are_refused_with_what_uses_them(kind, keys, others, uses):
    found = messages(optimizer_type=kind, **keys, **others)
    assert len(found) == (len(keys) if uses else 0)
    for key in keys if uses else ():
        assert any(message.startswith(f"f.yaml: {key} ") and uses in message for message in found)
