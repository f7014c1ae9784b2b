"""Tests of params.py and registry.py: loading a YAML, overriding, writing back."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.config import registry
from modelzoo.common.config.params import (
    load_params,
    read_yaml,
    resolve_path,
    save_params,
    saved_difference,
    saved_runconfig,
)
from tests.messages import names

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


def test_load_params_reads_numbers_yaml_takes_for_texts(write):
    params = load_params(write(TINY))
    assert params.model.layer_norm_epsilon == 1e-6
    assert params.optimizer.learning_rate[0].learning_rate == 1e-3


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
        ("model.hidden_size", "eight", ("a whole number", "'eight'")),
        ("train_input.batch_size", "0", ("at least 1",)),
        ("model.initializer", "{name: constant, value: x}", ("model.initializer.value", "'x'")),
        ("optimizer.learning_rate.steps", "5", ("optimizer.learning_rate must be a section",)),
        ("model.nonlinearity", "[", ("YAML", "'['")),
        ("model_name", "gpt4", ("gpt3", "'gpt4'")),
        ("runconfig.max_steps", "9", ("9", "7")),
    ],
)
def test_a_wrong_set_is_refused_by_its_name(write, key, text, facts):
    with pytest.raises(ConfigError) as error:
        load_params(write(TINY), {"runconfig.max_steps": 7}, settings=[(key, text)])
    assert names(error.value, f"--set {key}", *facts)
    assert "Line" not in str(error.value)


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
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert names(error.value, path, "Received: ", *facts)


def test_a_file_that_is_missing_is_named(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(ConfigError) as error:
            load_params(path)
        assert names(error.value, path)


def test_numbers_are_decimal_and_dates_are_texts(write):
    text = "a: 1_000\nb: 010\nc: 1:30\nd: 0x1F\ne: 0.5\nf: 2022-13-45\ng: -5\nh: 1:30.5\n"
    tree, _ = read_yaml(write(text))
    assert list(tree.values()) == [1000, 10, "1:30", 31, 0.5, "2022-13-45", -5, "1:30.5"]


def test_unknown_model_is_refused_with_the_names(write):
    with pytest.raises(ConfigError) as error:
        load_params(write(TINY.replace("gpt3", "gpt4")))
    assert names(error.value, "model_name", "'gpt4'", "gpt3")
    assert "gpt3" in registry.model_names()


def test_model_name_may_come_from_the_caller(write):
    path = write(TINY.replace("model_name: gpt3\n", ""))
    assert load_params(path, model_name="gpt3").model_name == "gpt3"


def test_saved_params_load_as_the_same_params(write, tmp_path):
    params = load_params(write(TINY))
    save_params(params, tmp_path)
    assert load_params(str(tmp_path / "params.yaml")) == params


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


def test_paths_above_the_repository_root_are_not_searched(tmp_path, monkeypatch):
    root = tmp_path / "repo"
    (root / "configs").mkdir(parents=True)
    (root / "setup.py").touch()
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(root)
    assert resolve_path("outside", root / "configs") == "outside"


def test_difference_from_saved_parameters_is_told_key_by_key(write, tmp_path):
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


def test_keys_of_one_side_only_are_told_as_added_or_removed(write, tmp_path):
    params = load_params(write(TINY))
    text = save_params(params, tmp_path)
    assert "  mixed_precision: false\n" in text
    old = text.replace("  mixed_precision: false\n", "  no_longer_known: [1, a]\n")
    (tmp_path / "params.yaml").write_text(old)
    assert saved_difference(params, tmp_path)[2:] == [
        "+model.mixed_precision: false",
        "-model.no_longer_known: [1, a]",
    ]


def test_difference_is_a_line_a_key_where_texts_have_line_breaks(write, tmp_path):
    (tmp_path / "params.yaml").write_text('predict_input: {stop: ["a\\n\\n", b]}\n')
    params = load_params(write(TINY))
    assert saved_difference(params, tmp_path, ["predict_input"])[2:] == [
        "+predict_input: null",
        '-predict_input.stop: ["a\\n\\n", b]',
    ]


def test_a_batch_of_more_tokens_than_sizes_can_count_is_refused(write):
    text = TINY.replace("max_sequence_length: 16", "max_sequence_length: 1073741824")
    with pytest.raises(ConfigError) as error:
        load_params(write(text))
    assert names(error.value, "train_input.max_sequence_length", "1073741824 x 2", "Line 4.")


@pytest.mark.parametrize("given", ["[[max_steps, 2]]", "max_steps 2"])
def test_a_runconfig_that_is_no_section_is_refused_with_options_too(write, given):
    path = write(TINY.replace("runconfig:\n    max_steps: 5", f"runconfig: {given}"))
    for overrides in ({}, {"runconfig.max_steps": 7}):
        with pytest.raises(ConfigError, match="runconfig must be a section of keys"):
            load_params(path, overrides)
    assert load_params(write(TINY.replace("    max_steps: 5", "")), {"runconfig.max_steps": 7})


@pytest.mark.parametrize("saved", ["runconfig: 5", "runconfig: [1]"])
def test_saved_parameters_that_no_run_wrote_are_named(tmp_path, saved):
    (tmp_path / "params.yaml").write_text(saved)
    with pytest.raises(ConfigError, match="params.yaml: runconfig must be a section"):
        saved_runconfig(tmp_path)


@pytest.mark.parametrize("content", ["# ---\n", "{}"])
def test_a_saved_file_without_parameters_is_named(write, tmp_path, content):
    params = load_params(write(TINY))
    (tmp_path / "params.yaml").write_text(content)
    says = "params.yaml: must hold sections of keys. Received: nothing. Restore the file."
    with pytest.raises(ConfigError, match=says):
        saved_runconfig(tmp_path)
    with pytest.raises(ConfigError, match=says):
        saved_difference(params, tmp_path)


@pytest.mark.parametrize("path", ["''", "[]", "[a, '']", '"a\\0b"', '[a, "a\\0b"]'])
def test_an_empty_path_or_one_with_a_null_byte_is_refused(write, path):
    text = TINY.replace("    batch_size: 2", f"    batch_size: 2\n    data_dir: {path}")
    with pytest.raises(ConfigError) as error:
        load_params(write(text))
    assert names(error.value, "train_input.data_dir", "Received: ")
