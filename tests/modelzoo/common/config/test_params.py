"""Tests of params.py and registry.py: loading a YAML, overriding, writing back."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.config import registry, schema
from modelzoo.common.config.params import (
    load_params,
    read_yaml,
    resolve_path,
    save_params,
    saved_difference,
    saved_runconfig,
)

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


@pytest.mark.parametrize(
    "key", ["model_dir", "checkpoint_path", "resume_from", "memoryx_dir", "device"]
)
def test_empty_paths_and_names_of_the_runconfig_are_refused(write, key):
    path = write(f"{TINY}    {key}: ''\n")
    with pytest.raises(ConfigError) as error:
        load_params(path)
    what = "a device, such as /cpu:0" if key == "device" else "a file or folder"
    told = f"runconfig.{key} must name {what}, not be empty. Received: ''. To leave it out, write "
    assert f"{told}null." in str(error.value)
    load_params(write(f"{TINY}    {key}: null\n"))


def test_command_line_wins_over_yaml_and_yaml_over_defaults(write):
    path = write(TINY)
    assert load_params(path).runconfig.max_steps == 5
    assert load_params(path, {"runconfig.max_steps": 7}).runconfig.max_steps == 7
    assert load_params(path, {"runconfig.max_steps": None}).runconfig.max_steps == 5
    assert load_params(path).runconfig.save_checkpoints_steps == 1000


def test_a_wrong_value_of_the_file_is_refused_also_where_the_command_line_has_another(write):
    key = "    max_steps: 5"
    path = write(TINY.replace(key, f"{key}\n    mode: trian"))
    for overrides in ({}, {"runconfig.mode": "eval"}):
        with pytest.raises(ConfigError) as error:
            load_params(path, overrides)
        assert str(error.value) == (
            f"{path}: runconfig.mode must be one of train, eval, train_and_eval, eval_all, "
            "predict. Received: 'trian'. Did you mean train? Line 17."
        )
    path = write(TINY.replace(key, "    max_steps: five"))
    with pytest.raises(ConfigError, match="runconfig.max_steps must be a whole number"):
        load_params(path, {"runconfig.max_steps": 5})


def test_the_mode_of_the_command_line_wins_over_the_files(write):
    # params.yaml of a model_dir has the mode that wrote it, and is evaluated as it is.
    path = write(TINY.replace("    max_steps: 5", "    max_steps: 5\n    mode: train"))
    assert load_params(path).runconfig.mode == "train"
    assert load_params(path, {"runconfig.mode": "eval"}).runconfig.mode == "eval"


def test_load_params_raises_every_mistake_at_once_with_its_line(write):
    text = TINY.replace("    num_hidden_layers: 1", "    num_layers: 24").replace(
        "    batch_size: 2", "    batch_size: two"
    )
    path = write(text)
    with pytest.raises(ConfigError) as error:
        load_params(path)
    message = str(error.value)
    assert (
        f"{path}: unknown key model.num_layers. Did you mean model.num_hidden_layers? "
        "Received: 24. Line 8." in message
    )
    assert "train_input.batch_size must be a whole number. Received: 'two'. Line 5." in message
    assert "model.num_hidden_layers is required. Add it to the section model. Line 6." in message
    assert len(message.splitlines()) == 3


def test_a_mistake_that_sections_take_over_is_told_once(write):
    wrong = TINY.replace("batch_size: 2", "batch_size: two")
    path = write(wrong + "eval_input:\n    shuffle: false\n")
    with pytest.raises(ConfigError) as error:
        load_params(path)
    assert str(error.value).count("batch_size") == str(error.value).count("Line 5.") == 1
    path = write(wrong + "eval_input:\n    batch_size: two\n")
    with pytest.raises(ConfigError, match="Line 5.\n.*eval_input.batch_size must.*Line 18"):
        load_params(path)


def test_keys_that_two_sections_lack_are_told_of_both():
    report = schema.Report("f.yaml", {"train_input": 1, "eval_input": 5})
    for section in ("train_input", "eval_input"):
        report.add(f"{section}.src_data_dir", f"{section}.src_data_dir is required.")
    assert report.text().count("is required") == 2


@pytest.mark.parametrize("given", ["0", "-2.5", ".inf"])
def test_memory_for_activations_must_be_an_amount(write, given):
    key = "    max_steps: 5"
    assert key in TINY
    with pytest.raises(
        ConfigError, match=r"runconfig.wafer_memory_gb must be (above 0|a finite number)"
    ):
        load_params(write(TINY.replace(key, f"{key}\n    wafer_memory_gb: {given}")))
    params = load_params(write(TINY.replace(key, f"{key}\n    wafer_memory_gb: 6")))
    assert params.runconfig.wafer_memory_gb == 6.0


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="absent.yaml: cannot be read: No such file"):
        load_params(str(tmp_path / "absent.yaml"))


def test_files_of_a_folder_or_beside_a_missing_one_are_named(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "b.yaml").touch()
    (tmp_path / "inner" / "a.yaml").touch()
    with pytest.raises(ConfigError, match=r"inner: cannot be read: .*Files there: a\.yaml\.$"):
        load_params(str(tmp_path / "inner"))
    with pytest.raises(ConfigError, match=r"x\.txt: cannot be read: .*Files there: b\.yaml\.$"):
        load_params(str(tmp_path / "x.txt"))


def test_broken_yaml_is_reported_with_its_line(write):
    with pytest.raises(ConfigError, match="line 3: this is not YAML"):
        load_params(write("a: 1\nb: [1, 2\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("b: 1:30", "a number must not be in base 60, as YAML reads one with colons. "
         "Received: 1:30, which is 90. Write 90 or, for a text, '1:30'."),
        ("b: [1, 010]", "a number must not be in base 8, as YAML reads one that begins with 0. "
         "Received: 010, which is 8. Write 10 or, for a text, '010'."),
        ("b: {c: -1:30.5}", "Received: -1:30.5, which is -90.5. Write -90.5 or, "),
        ("-010: 1", "Received: -010, which is -8. Write -10 or, "),
    ],
)  # fmt: skip
def test_numbers_that_yaml_reads_in_another_base_are_refused(write, text, says):
    path = write(f"a: 1\n{text}\n")
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}: line 2: a number must not be in base ")
    assert says in str(error.value)


def test_numbers_of_one_meaning_are_read(write):
    text = "a: 1_000\nb: 0\nc: '010'\nd: 0x1F\ne: 0.5\nf: '1:30'\n"
    tree, _ = read_yaml(write(text))
    assert tree == {"a": 1000, "b": 0, "c": "010", "d": 31, "e": 0.5, "f": "1:30"}


def test_file_of_bytes_that_are_no_text_is_refused(write):
    path = write("\x00\x01")
    with pytest.raises(ConfigError, match=f"{path}: this is not YAML: unacceptable character"):
        load_params(path)


def test_key_given_twice_is_refused(write):
    with pytest.raises(ConfigError, match="key model.a stands twice. Received: lines 2 and 3"):
        read_yaml(write("model:\n    a: 1\n    a: 2\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2022-13-45\n", "line 2: .*'2022-13-45' is no timestamp"),
        ("a: 1\nb: !!int abc\n", "line 2: .*'abc' is no int"),
        ("a: 1\nb: !!bool abc\n", "line 2: .*'abc' is no bool"),
        ("x: &a {b: *a}\n", "line 1: a section must not hold itself"),
        ("a: 1\nx: " + "{a: " * 2000 + "1" + "}" * 2000, "line 2: .* must not nest so deep"),
    ],
)
def test_what_yaml_cannot_make_is_told_with_its_line(write, text, words):
    with pytest.raises(ConfigError, match=words):
        read_yaml(write(text))


def test_unknown_model_is_refused_with_the_names(write):
    with pytest.raises(ConfigError, match="gpt3.*Received: 'gpt4'. Did you mean gpt3?"):
        load_params(write(TINY.replace("gpt3", "gpt4")))
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
    assert text != TINY
    says = (
        r"train_input.max_sequence_length times .* Received: 1073741824 x 2\. "
        r"Lower one of them\. Line"
    )
    with pytest.raises(ConfigError, match=says):
        load_params(write(text))


@pytest.mark.parametrize("given", ["[[max_steps, 2]]", "max_steps 2"])
def test_a_runconfig_that_is_no_section_is_refused_with_options_too(write, given):
    path = write(TINY.replace("runconfig:\n    max_steps: 5", f"runconfig: {given}"))
    for overrides in ({}, {"runconfig.max_steps": 7}):
        with pytest.raises(ConfigError, match="runconfig must be a section of keys. Received: "):
            load_params(path, overrides)
    assert load_params(write(TINY.replace("    max_steps: 5", "")), {"runconfig.max_steps": 7})


@pytest.mark.parametrize("saved", ["runconfig: 5", "runconfig: [1]", "runconfig: {resume_from: 5}"])
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


@pytest.mark.parametrize("path", ['"a\\0b"', '[a, "a\\0b"]'])
def test_a_path_with_a_null_byte_is_refused(write, path):
    text = TINY.replace("    batch_size: 2", f"    batch_size: 2\n    data_dir: {path}")
    says = r"train_input.data_dir must be a path, which has no null byte. Received: .*a\\x00b"
    with pytest.raises(ConfigError, match=says):
        load_params(write(text))
    with pytest.raises(ConfigError, match="runconfig.memoryx_dir must be a path"):
        load_params(write(f'{TINY}    memoryx_dir: "a\\0b"\n'))


@pytest.mark.parametrize("path", ["''", "[]", "[a, '']"])
def test_an_empty_path_is_refused(write, path):
    text = TINY.replace("    batch_size: 2", f"    batch_size: 2\n    data_dir: {path}")
    with pytest.raises(ConfigError, match="train_input.data_dir must name a file or folder"):
        load_params(write(text))
