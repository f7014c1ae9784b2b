"""Tests of trained_on.py: training goes on with the vocabulary of the checkpoint's steps."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.checkpoints.writer import write_checkpoint
from cerebras_tf.errors import DataError
from modelzoo.common.config.input_sections import GptTextDataInput
from modelzoo.common.config.params import load_params
from modelzoo.common.data.preparation.records import RecordWriter
from modelzoo.common.model_dir.checkpoint_files import resumed
from modelzoo.common.train import run
from modelzoo.common.train.trained_on import check_vocabulary, follow_data, save_vocabulary
from tests.messages import names, raises

S, V = 8, 40
YAML = """\
model_name: gpt3
train_input:
    data_processor: GptTfRecordsProcessor
    data_dir: {folder}
    vocab_size: 40
    max_sequence_length: 8
    batch_size: 2
model: {{hidden_size: 8, num_hidden_layers: 1, num_heads: 2, filter_size: 16}}
optimizer: {{optimizer_type: adamw, learning_rate: 1e-3}}
runconfig: {{max_steps: 4, save_checkpoints_steps: 2, model_dir: {out}}}
"""
FOLDERS = {"one": "a", "same": "a", "other": "b", "untold": None}  # digest of each


@pytest.fixture
def load(tmp_path):
    """Returns a function that loads a params file with the records of a folder."""
    for name, digest in FOLDERS.items():
        (tmp_path / name).mkdir()
        writer = RecordWriter(tmp_path / name, "examples")
        for number in range(4):
            row = np.full(S, number)
            writer.write({"input_ids": row, "input_mask": np.ones_like(row), "labels": row})
        writer.close()
        settings = {"vocabulary": [[f"{name}.txt", 9, "of the file"]], "max_seq_length": S}
        facts = {"settings": settings, "vocab_size": V, "files": writer.files}
        facts |= {"vocabulary_sha256": digest} if digest else {}
        (tmp_path / name / "manifest.json").write_text(json.dumps(facts))

    def write(name, **runconfig):
        path = tmp_path / "params_x.yaml"
        path.write_text(YAML.format(folder=tmp_path / name, out=tmp_path / "out"))
        return load_params(str(path), {f"runconfig.{k}": runconfig[k] for k in runconfig})

    return write


def test_only_another_vocabulary_than_that_of_the_steps_before_is_refused(load, tmp_path):
    (tmp_path / "out").mkdir()
    for name in FOLDERS:
        check_vocabulary(load(name), 3)  # of a conversion, which leaves no file
    save_vocabulary(load("one"), 0)
    for name in ("one", "same", "untold"):
        check_vocabulary(load(name), 3)
    for name in FOLDERS:
        check_vocabulary(load(name), 0)  # a run that has trained nothing
    check_vocabulary(load("other", restore_partially=True), 3)
    with raises(DataError, f"{tmp_path}/out/trained_on.json", "one.txt", "other.txt"):
        check_vocabulary(load("other"), 3)


@pytest.mark.parametrize("key", ["tokenizer_file", "src_vocab_file"])
def test_files_of_vocabularies_count_under_their_keys(load, tmp_path, key):
    (tmp_path / "out").mkdir()

    def params(tokens):
        path = tmp_path / f"{tokens}.txt"
        if key == "src_vocab_file":
            path.write_text("\n".join(tokens) + "\n")
        else:
            tokenizers = pytest.importorskip("tokenizers")
            model = tokenizers.models.WordLevel({c: i for i, c in enumerate(tokens)}, tokens[0])
            tokenizers.Tokenizer(model).save(str(path))
        section = SimpleNamespace(data_dir=str(tmp_path), **{key: str(path)})
        return dataclasses.replace(load("one"), train_input=section)

    save_vocabulary(params("abc"), 0)
    check_vocabulary(params("abc"), 3)
    check_vocabulary(load("other"), 3)  # known in another way
    with raises(DataError, "abc.txt", "acb.txt"):
        check_vocabulary(params("acb"), 3)


def test_other_data_than_those_of_the_steps_before_are_logged(load, tmp_path, caplog):
    (tmp_path / "out").mkdir()
    save_vocabulary(load("one"), 0)
    check_vocabulary(load("one"), 3)
    assert not caplog.text
    (tmp_path / "one" / "more.tfrecord").write_bytes(b"more")
    check_vocabulary(load("one"), 3)
    assert names(caplog.text, "Before: 1 file", "Now: 2 files")


def test_text_that_has_grown_is_logged(load, tmp_path, caplog):
    (tmp_path / "out").mkdir()
    (tmp_path / "a.txt").write_text("ab" * 20)
    given = {"max_sequence_length": 4, "batch_size": 1, "data_dir": str(tmp_path / "a.txt")}
    section = GptTextDataInput(data_processor="GptTextDataProcessor", **given)
    params = dataclasses.replace(load("one"), train_input=section)
    save_vocabulary(params, 0)
    check_vocabulary(params, 3)
    assert "Before" not in caplog.text
    with open(tmp_path / "a.txt", "a") as file:
        file.write("cd")
    check_vocabulary(params, 3)
    assert names(caplog.text, "Before: 39 tokens", "Now: 41 tokens")
    follow_data(params, 3)
    assert (tmp_path / "out" / "trained_on.json").exists()
    nothing = SimpleNamespace(data_dir=None)
    follow_data(dataclasses.replace(params, train_input=nothing), 0)
    assert not (tmp_path / "out" / "trained_on.json").exists()


def test_what_a_checkpoint_was_trained_on_goes_with_it_and_leaves_with_a_failed_start(
    load, tmp_path
):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    write_checkpoint(str(source / "model.ckpt-5"), [{"global_step": np.int64(5)}])
    tf.train.update_checkpoint_state(str(source), "model.ckpt-5", ["model.ckpt-5"])
    save_vocabulary(load("one", model_dir=str(source)), 0)
    runconfig = SimpleNamespace(model_dir=str(out), resume_from=str(source))
    with resumed(runconfig):
        check_vocabulary(load("same"), 5)
    assert not list(out.iterdir())
    with raises(DataError, f"{source}/trained_on.json"), resumed(runconfig):
        check_vocabulary(load("other"), 5)
    (source / "trained_on.json").unlink()
    (out / "trained_on.json").write_text("left by a copy that was killed")
    with resumed(runconfig):
        check_vocabulary(load("other"), 5)


def test_a_run_remembers_what_it_trains_on_and_refuses_to_continue_with_another(load, tmp_path):
    load("one")
    path = str(tmp_path / "params_x.yaml")
    arguments = ["-m", "train", "-p", path, "-o", str(tmp_path / "out"), "--device", "/cpu:0"]
    run.main([*arguments, "--max_steps", "2"])
    assert json.loads((tmp_path / "out/trained_on.json").read_text())["records"][1] == "a"
    load("other")
    with raises(DataError, "one.txt", "other.txt"):
        run.main(arguments)
    run.main([*arguments, "--max_steps", "2"])  # nothing to train
    load("same")
    run.main(arguments)
    assert tf.train.latest_checkpoint(str(tmp_path / "out")).endswith("-4")
