"""Checks what bad input gets: one paragraph, exit code 2, and a folder left as it was."""

from __future__ import annotations

import os
import re
import socket

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.bundle.index import read_index

pytestmark = pytest.mark.tf
TEXT_INPUT = "data_processor: GptTextDataProcessor\n    data_dir: texts\n    eval_fraction: 0.0"
EVAL_INPUT = "eval_input:\n    data_processor: GptTextDataProcessor\n    data_dir: texts\n"
EVAL_INPUT += "predict_input: {}\n"
MORE = ("--max_steps", "20")


@pytest.fixture
def refused(trained):
    """Returns a function: a command must be refused with certain words and change nothing."""

    def check(mode, *flags, says):
        before = trained.content()
        result = trained(mode, *flags)
        assert result.exit_code == 2
        assert result.error.startswith("run: ")
        assert "Traceback" not in result.error
        for words in says:
            assert words in result.error
        assert trained.content() == before

    check.command_line = trained
    return check


def use_records(command_line, length=16, count=8, names=("input_ids", "input_mask", "labels")):
    """Makes a TFRecord file the training data; returns its path."""
    path = command_line.folder / "records" / "a.tfrecords"
    path.parent.mkdir()
    integers = tf.train.Feature(int64_list=tf.train.Int64List(value=[1] * length))
    features = tf.train.Features(feature=dict.fromkeys(names, integers))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(count):
            writer.write(tf.train.Example(features=features).SerializeToString())
    records = "data_processor: GptTfRecordsProcessor\n    data_dir: records\n    vocab_size: 257"
    command_line.change((TEXT_INPUT, records), (EVAL_INPUT, ""))
    return path


@pytest.mark.parametrize(
    "old,new,says",
    [
        ("num_hidden_layers", "num_layers", "Did you mean model.num_hidden_layers?"),
        ("hidden_size: 32", "hidden_size: wide", "model.hidden_size must be a whole number."),
        ("num_heads: 2", "num_heads: 5", "model.num_heads must divide hidden_size (32)."),
        ("optimizer_type: adamw", "optimizer_type: rmsprob", "Did you mean rmsprop?"),
        ("max_steps: 10", "max_stps: 10", "Did you mean runconfig.max_steps?"),
        ("num_hidden_layers: 1", "num_hidden_layers: 1000000000", "must be below 10001."),
        ("num_heads: 2", "num_heads: 2\n    dropout_rate: 1.0", "dropout_rate must be below 1.0."),
        ("batch_size: 4", "batch_size: 4\n    shuffle_seed: -1", "seed must be at least 0."),
    ],
)
def test_wrong_keys_and_types_are_named_with_their_line(refused, old, new, says):
    refused.command_line.change((old, new))
    refused("train", *MORE, says=[says, "params_small.yaml", "Line "])


def test_several_mistakes_are_told_together(refused):
    refused.command_line.change(("hidden_size: 32", "hiden_size: 32"), ("1e-2", "fast"))
    refused("eval", says=["unknown key model.hiden_size", "optimizer.learning_rate must be"])


def test_a_missing_params_file_is_named_with_its_neighbours(refused):
    missing = str(refused.command_line.folder / "params_smal.yaml")
    refused("train", "-p", missing, says=[missing, "params_small.yaml"])


def test_a_file_that_is_no_yaml_is_named_with_the_line(trained):
    before = trained.content()
    trained.change(("eval_steps: 2", "eval_steps: [2"))
    result = trained("train", *MORE)
    assert result.exit_code == 2
    assert "must be YAML" in result.error and "line " in result.error
    assert trained.content() == before


@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
@pytest.mark.parametrize("folder,says", [("gone", "'gone'"), ("empty", "must hold files named")])
def test_missing_and_empty_data_folders_are_named(refused, mode, folder, says):
    (refused.command_line.folder / "empty").mkdir()
    refused.command_line.change(("data_dir: texts", f"data_dir: {folder}"))
    refused(mode, *(MORE if mode == "train" else ()), says=["data_dir: must", says, folder])


def test_a_truncated_record_file_is_named(refused):
    path = use_records(refused.command_line)
    path.write_bytes(path.read_bytes()[:-7])
    refused("train", *MORE, says=[str(path), "must be a whole TFRecord file", "at byte"])


def test_a_record_with_a_flipped_bit_is_refused(trained):
    path = use_records(trained)
    data = bytearray(path.read_bytes())
    data[-10] ^= 1  # inside the content of the last record
    path.write_bytes(data)
    before = trained.content()
    result = trained("train", *MORE)
    assert result.exit_code == 2
    assert "Traceback" not in result.error
    assert f"{path}: must be a whole TFRecord file. Received: the record at byte" in result.error
    kept = [name for name in before if "model.ckpt-" in name and ".meta" not in name]
    after = trained.content()
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_records_of_another_length_are_told_both_ways_out(refused):
    path = use_records(refused.command_line, length=20)
    says = [str(path), "must have 16 values", "Received: 20", "max_sequence_length"]
    refused("train", *MORE, says=says)


def test_records_without_a_feature_or_too_few_are_named(refused):
    path = use_records(refused.command_line, names=("input_ids", "tokens"))
    refused("train", *MORE, says=["input_ids, input_mask, labels", "input_ids, tokens"])
    path.unlink()
    path.parent.rmdir()
    use_records(refused.command_line, count=3)
    refused("train", *MORE, says=["at least 4 records", "Received: 3"])


@pytest.mark.parametrize("device", [(), ("--device", "/cpu:0")])
@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
@pytest.mark.parametrize(
    "change,says",
    [
        (("hidden_size: 32", "hidden_size: 64"), "[257, 32] there and [257, 64] in the model"),
        (("num_hidden_layers: 1", "num_hidden_layers: 2"), "is not there"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(refused, mode, device, change, says):
    refused.command_line.change(change)
    flags = [*device, *(MORE if mode == "train" else ())]
    refused(mode, *flags, says=["model.ckpt-10: must fit the model", says, "-o"])


@pytest.mark.parametrize("device", [(), ("--device", "/cpu:0")])
@pytest.mark.parametrize("damage", ["data flipped", "data cut", "index", "gone"])
def test_a_damaged_checkpoint_is_named(trained, device, damage):
    (data,) = (trained.folder / "out").glob("model.ckpt-10.data*")
    index = trained.folder / "out" / "model.ckpt-10.index"
    content = bytearray(data.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4] = b"\xff\x00\xff\x00"
    if damage == "data flipped":
        data.write_bytes(content)
    elif damage == "data cut":
        data.write_bytes(content[: len(content) // 2])
    elif damage == "index":
        index.write_bytes(b"nothing")
    else:
        index.unlink()
    before = trained.content()
    result = trained("train", *MORE, *device)
    assert result.exit_code == 2
    assert "Traceback" not in result.error
    assert "heckpoint" in result.error
    assert str(trained.folder / "out" / "model.ckpt-5") in result.error
    after = trained.content()
    assert {path: after[path] for path in before} == before


@pytest.mark.parametrize("mode", ["eval", "predict", "train"])
def test_validating_alone_says_which_of_a_checkpoint_it_compared(trained, monkeypatch, mode):
    prefix = str(trained.folder / "out" / "model.ckpt-10")
    flags = ["--validate_only", *(MORE if mode == "train" else ())]

    def told():
        result = trained(mode, *flags)
        assert result.exit_code == 0, result.error
        return [line for line in result.lines if line.startswith(prefix)]

    entries = read_index(prefix)
    right = f"{prefix}: its index and the sizes of its files are right, and "
    assert told() == [f"{right}so are the checksums of all its {len(entries)} variables"]
    entry = next(entry for each, entry in sorted(entries.items()) if "/adam" not in each.lower())
    with open(entry.path, "rb+") as file:
        file.seek(entry.offset)
        byte = file.read(1)[0]
        file.seek(entry.offset)
        file.write(bytes([byte ^ 1]))
    damaged = trained(mode, *flags)
    assert damaged.exit_code == 2
    assert f"{prefix}, variable " in damaged.error and "Traceback" not in damaged.error
    assert "model.ckpt-5" in damaged.error
    monkeypatch.setattr("modelzoo.common.model_dir.checkpoint_files.MOST_VALIDATED_BYTES", 1000)
    (later,) = told()
    assert later.startswith(right) and later.endswith("GB are compared when they are read")


@pytest.mark.parametrize("device", [(), ("--device", "/cpu:0")])
@pytest.mark.parametrize("mode", ["eval", "predict", "train"])
def test_a_checkpoint_cut_in_its_optimizer_state_is_told(trained, mode, device):
    prefix = str(trained.folder / "out" / "model.ckpt-10")
    (data,) = trained.folder.glob("out/model.ckpt-10.data*")
    entries = read_index(prefix)
    last = max(entries, key=lambda name: entries[name].offset)
    assert re.search("adam", last, re.IGNORECASE)
    whole = trained(mode, *device, "--checkpoint_path", prefix, out="whole")
    size = data.stat().st_size
    os.truncate(data, size - 1)
    cut = trained(mode, *device, "--checkpoint_path", prefix, out="cut")
    assert (whole.exit_code, cut.exit_code) == (0, 0)
    told = [line for line in cut.lines if "is damaged" in line]
    assert len(told) == 1
    for words in (data.name, f"{size - 1} of {size} bytes", last, "model.ckpt-5"):
        assert words in told[0]
    assert not any("is damaged" in line for line in whole.lines)


def test_a_warm_start_from_nothing_or_from_another_model_is_refused(trained):
    gone = trained("train", "--checkpoint_path", str(trained.folder / "gone"), out="new")
    assert gone.exit_code == 2
    assert "gone: must be a checkpoint" in gone.error
    trained.change(("hidden_size: 32", "hidden_size: 64"))
    path = str(trained.folder / "out" / "model.ckpt-5")
    other = trained("train", "--checkpoint_path", path, out="new")
    assert other.exit_code == 2
    assert "must fit the model" in other.error
    assert not trained.content("new")


@pytest.mark.parametrize(
    "device", [(), pytest.param(("--device", "/cpu:0"), marks=pytest.mark.slow)]
)
def test_weights_of_a_checkpoint_that_are_not_used_are_told(command_line, device):
    def told(mode, *flags, out="out"):
        result = command_line(mode, *device, *flags, out=out)
        assert result.exit_code == 0, result.error
        return [line for line in result.lines if "weights that are not used here" in line]

    command_line.change(("num_hidden_layers: 1", "num_hidden_layers: 2"))
    assert not told("train", "--max_steps", "1")
    assert not told("eval")
    command_line.change()
    path = str(command_line.folder / "out" / "model.ckpt-1")
    flags = ("--checkpoint_path", path, "--max_steps", "1")
    found = [*told("train", *flags, out="new"), *told("eval"), *told("predict")]
    beyond = command_line.variables().keys() - command_line.variables("new").keys()
    weights = sorted(name for name in beyond if "adam" not in name.lower())
    assert 5 < len(weights) < len(beyond)
    assert len(found) == 3
    words = f"holds {len(weights)} weights that are not used here: {', '.join(weights[:5])} and "
    assert all(words in line for line in found)


def test_a_loss_that_is_not_finite_ends_training_before_it_is_saved(trained):
    before = trained.variables()
    trained.change(("learning_rate: 1e-2", "learning_rate: 1e30"))
    result = trained("train", *MORE)
    assert result.exit_code == 2
    assert "the loss must be finite. Received: " in result.error
    assert "Traceback" not in result.error
    assert trained.steps() == [0, 5, 10]
    after = trained.variables()
    assert all((after[name] == value).all() for name, value in before.items())
    trained.change()
    assert trained("train", "--max_steps", "11").exit_code == 0


@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
def test_an_address_where_nothing_answers_is_refused(refused, mode):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, but nobody listens
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        flags = MORE if mode == "train" else ()
        refused(mode, *flags, "--cs_ip", address, says=[address, "nothing answers there"])


def test_a_device_that_is_not_there_is_refused(refused):
    refused("train", *MORE, "--device", "/gpu:7", says=["device: must be one", "/CPU:0"])


def test_eval_without_a_checkpoint_is_refused(command_line):
    result = command_line("eval")
    assert result.exit_code == 2
    assert "out: must be a checkpoint, or a folder that holds one" in result.error


def test_a_misspelled_flag_is_named(trained):
    result = trained("train", "--max_step", "3")
    assert result.exit_code == 2
    assert "--max_step" in result.error


def test_debug_shows_the_traceback(trained):
    result = trained("train", *MORE, "--device", "/gpu:7", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.error
    assert "ConfigError: device" in result.error
