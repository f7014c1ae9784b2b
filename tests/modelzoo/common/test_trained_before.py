"""Tests of trained_before.py: data of another vocabulary than the checkpoint's are refused."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError  # noqa: E402
from cerebras_tf.estimator.checkpoint_writer import write_checkpoint  # noqa: E402
from modelzoo.common.params import load_params, save_params  # noqa: E402
from modelzoo.common.trained_before import check_trained  # noqa: E402

YAML = """\
model_name: gpt3
train_input:
    data_processor: GptTfRecordsProcessor
    data_dir: {folder}
    vocab_size: 50257
    max_sequence_length: 16
    batch_size: 2
eval_input: {{data_dir: {folder}}}
model: {{hidden_size: 8, num_hidden_layers: 1, num_heads: 2, filter_size: 16}}
optimizer: {{optimizer_type: adamw, learning_rate: 1e-3}}
runconfig: {{max_steps: 5, model_dir: {out}}}
"""


@pytest.fixture
def given(tmp_path):
    """Returns a function that loads a params file with records of a folder."""
    for name, digest in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / name).mkdir()
        settings = {"vocabulary": [[f"{name}.txt", 9, "of the file"]]}
        facts = {"settings": settings, "vocab_size": 50257, "vocabulary_sha256": digest}
        (tmp_path / name / "manifest.json").write_text(json.dumps(facts))

    def load(name, mode):
        path = tmp_path / "params_x.yaml"
        path.write_text(YAML.format(folder=tmp_path / name, out=tmp_path / "out"))
        return load_params(str(path), {"runconfig.mode": mode})

    return load


def train_on(params, step):
    folder = params.runconfig.model_dir
    prefix = f"{folder}/model.ckpt-{step}"
    write_checkpoint(prefix, [{"global_step": np.int64(step)}])
    tf.train.update_checkpoint_state(folder, prefix, [prefix])
    save_params(params, folder)


def check(params):
    check_trained(params, [params.train_input, params.eval_input])


@pytest.mark.parametrize("mode", ["train", "train_and_eval", "eval", "eval_all", "predict"])
def test_records_of_another_vocabulary_than_the_checkpoints_are_refused(given, tmp_path, mode):
    check(given("other", mode))  # nothing is trained
    train_on(given("one", "train"), 3)
    for name in ("one", "same"):
        check(given(name, mode))
    with pytest.raises(DataError) as error:
        check(given("other", mode))
    told = str(error.value)
    assert f"{tmp_path}/other: must hold records made with the tokens of one.txt" in told
    assert f"The checkpoint in {tmp_path}/out was trained on the former, as its params.yaml" in told


def test_a_run_that_has_trained_nothing_takes_any_data(given):
    train_on(given("one", "train"), 0)
    check(given("other", "train"))


def test_the_checkpoint_that_is_named_counts(given, tmp_path):
    train_on(given("one", "train"), 3)
    params = given("other", "eval")
    elsewhere = dataclasses.replace(params.runconfig, model_dir=str(tmp_path / "empty"))
    check(dataclasses.replace(params, runconfig=elsewhere))
    named = dataclasses.replace(elsewhere, checkpoint_path=str(tmp_path / "out"))
    with pytest.raises(DataError, match="other.txt, which are others"):
        check(dataclasses.replace(params, runconfig=named))


@pytest.mark.parametrize("saved", ["{", "model_name: gpt3", "", None])
def test_saved_parameters_that_cannot_be_read_tell_nothing(given, tmp_path, saved):
    train_on(given("one", "train"), 3)
    path = tmp_path / "out" / "params.yaml"
    path.write_text(saved) if saved is not None else path.unlink()
    check(given("other", "eval"))
