"""Checks what bad input gets: one paragraph, exit code 2, and a folder left as it was.

Each wrong value, file or option is tested where it is read; this file holds one of each kind.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.bundle.index import read_index
from tests.messages import names

pytestmark = pytest.mark.tf

DEVICES = pytest.mark.parametrize("device", [(), ("--device", "/cpu:0")], ids=["wafer", "host"])
MORE = ("--max_steps", "20")


@pytest.fixture
def refused(trained):
    """Returns a function: a command must be refused with certain facts and change nothing."""

    def check(*words, facts):
        before = trained.content()
        result = trained(*words)
        assert result.exit_code == 2 and result.error.startswith("run: ")
        assert "Traceback" not in result.error and names(result.error, *facts)
        after = trained.content()
        assert {name: after[name] for name in before} == before

    return check


@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
@pytest.mark.parametrize(
    ("change", "flags", "facts"),
    [
        (("num_hidden_layers: 1", "num_layers: 1"), (), ("model.num_layers", "_small.yaml")),
        (("data_dir: texts", "data_dir: gone"), (), ("data_dir", "'gone'")),
        (("", ""), ("--device", "/gpu:7"), ("device", "/CPU:0")),
        (("hidden_size: 32", "hidden_size: 64"), (), ("ckpt-10", "[257, 32]", "[257, 64]", "-o")),
        (("num_hidden_layers: 1", "num_hidden_layers: 2"), ("--device", "/cpu:0"), ("ckpt-10",)),
    ],
)
def test_a_wrong_input_of_each_kind_is_one_paragraph(refused, trained, mode, change, flags, facts):
    trained.change(change)
    refused(mode, *flags, *(MORE if mode == "train" else ()), facts=facts)


def test_a_record_with_a_flipped_bit_is_named_in_training(trained):
    path = trained.folder / "records" / "a.tfrecords"
    path.parent.mkdir()
    integers = tf.train.Feature(int64_list=tf.train.Int64List(value=[1] * 16))
    features = dict.fromkeys(("input_ids", "input_mask", "labels"), integers)
    record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(8):
            writer.write(record)
    data = bytearray(path.read_bytes())
    data[-10] ^= 1  # inside the content of the last record
    path.write_bytes(data)
    text = "data_processor: GptTextDataProcessor\n    data_dir: texts"
    records = "data_processor: GptTfRecordsProcessor\n    data_dir: records\n    vocab_size: 257"
    trained.change(
        (f"{text}\n    eval_fraction: 0.0", records),
        (f"eval_input:\n    {text}\npredict_input: {{}}\n", ""),
    )
    before = trained.content()
    result = trained("train", *MORE)
    assert result.exit_code == 2 and "Traceback" not in result.error
    assert names(result.error, f"{path}: ", "TFRecord", "at byte")
    after = trained.content()
    kept = [name for name in before if "model.ckpt-" in name and ".meta" not in name]
    assert kept and all(after[name] == before[name] for name in kept)


@DEVICES
@pytest.mark.parametrize("damaged", ["data", "index"])
def test_a_damaged_checkpoint_is_named_with_the_one_before(refused, trained, device, damaged):
    (path,) = (trained.folder / "out").glob(f"model.ckpt-10.{damaged}*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4] = b"\xff\x00\xff\x00"
    path.write_bytes(content)
    refused("train", *MORE, *device, facts=("heckpoint", trained.folder / "out" / "model.ckpt-5"))


@DEVICES
def test_a_checkpoint_cut_in_its_optimizer_state_is_evaluated_and_logged(trained, device):
    prefix = str(trained.folder / "out" / "model.ckpt-10")
    (data,) = trained.folder.glob("out/model.ckpt-10.data*")
    entries = read_index(prefix)
    last = max(entries, key=lambda name: entries[name].offset)
    assert "adam" in last.lower()
    size = data.stat().st_size
    os.truncate(data, size - 1)
    cut = trained("eval", *device)
    assert cut.exit_code == 0
    (line,) = [line for line in cut.lines if "is damaged" in line]
    assert names(line, data.name, f"{size - 1} of {size} bytes", last, "model.ckpt-5")


def test_weights_of_a_checkpoint_that_are_not_used_are_logged(command_line):
    def logged(mode, *flags, out="out"):
        result = command_line(mode, *flags, out=out)
        assert result.exit_code == 0, result.error
        return [line for line in result.lines if "weights that are not used here" in line]

    command_line.change(("num_hidden_layers: 1", "num_hidden_layers: 2"))
    assert not logged("train", "--max_steps", "1") and not logged("eval")
    command_line.change()
    path = str(command_line.folder / "out" / "model.ckpt-1")
    start = logged("train", "--checkpoint_path", path, "--max_steps", "1", out="new")
    found = [*start, *logged("eval"), *logged("predict")]
    beyond = command_line.variables().keys() - command_line.variables("new").keys()
    weights = sorted(name for name in beyond if "adam" not in name.lower())
    assert len(found) == 3 and 5 < len(weights) < len(beyond)
    assert all(names(line, f" {len(weights)} weights", ", ".join(weights[:5])) for line in found)


def test_a_loss_that_is_not_finite_ends_training_before_it_is_saved(trained):
    before = trained.variables()
    trained.change(("learning_rate: 1e-2", "learning_rate: 1e30"))
    result = trained("train", *MORE)
    assert result.exit_code == 2 and "Traceback" not in result.error
    assert names(result.error, "loss", "finite", "Received: ")
    assert trained.steps() == [0, 5, 10]
    after = trained.variables()
    assert all((after[name] == value).all() for name, value in before.items())
    trained.change()
    assert trained("train", "--max_steps", "11").exit_code == 0
