"""A model that is deleted as it is taken in: nothing is lost, whenever that is stopped."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest

from cerebras_tf.bundle.writer import BundleWriter
from cerebras_tf.errors import CheckpointError, ConfigError
from modelzoo.common.config.params import load_params
from modelzoo.common.convert import taken_in
from modelzoo.common.convert.convert import from_tensorflow, to_tensorflow
from modelzoo.common.convert.hugging_face import HuggingFaceReader
from modelzoo.common.convert.random_model import write_random_model
from modelzoo.common.convert.tensorflow_checkpoint import TensorFlowReader
from tests.modelzoo.common.convert.models import write_model

pytestmark = pytest.mark.tf


def contents(folder):
    reader = TensorFlowReader(folder)
    return {name: reader.read(name) for name in reader.shapes}


@pytest.fixture
def sharded(tmp_path):
    """A model of several files, and what a conversion that deletes nothing makes of it."""
    write_model(tmp_path / "one", "gptj")
    to_tensorflow(tmp_path / "one", tmp_path / "plain")
    from_tensorflow(tmp_path / "plain", tmp_path / "theirs", max_shard_bytes=1500)
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 3
    return tmp_path / "theirs", contents(tmp_path / "plain")


def assert_taken(source, output, wanted):
    assert not list(source.glob("*.safetensors")) and (source / "config.json").exists()
    found = contents(output)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, name)
    names = {path.name for path in output.iterdir()}
    assert ".taken_in" not in names and ".unfinished" not in names


def test_files_go_and_the_checkpoint_is_the_same(sharded, tmp_path):
    source, wanted = sharded
    done = to_tensorflow(source, tmp_path / "ours", delete_source=True)
    assert done.weights == sum(array.size for n, array in wanted.items() if n != "global_step")
    assert_taken(source, tmp_path / "ours", wanted)


class Stop:
    """Stops a conversion at a call, of those that change files, by its number."""

    CALLS = (
        (BundleWriter, "finish"),
        (taken_in.TakenIn, "_write_journal"),
        (taken_in.TakenIn, "write"),
        (taken_in.TakenIn, "end"),
        (taken_in.Path, "unlink"),
        (taken_in.os, "replace"),
    )

    def __init__(self, patch, number):
        self.calls, self._number = 0, number
        for place, name in self.CALLS:
            patch.setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, function):
        def call(*args, **kwargs):
            self.calls += 1
            if self.calls == self._number:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call


def test_a_conversion_that_was_stopped_goes_on(sharded, tmp_path, monkeypatch):
    """Stopped at any of its writes, deletions and moves, the last of which ends the journal."""
    theirs, wanted = sharded
    for number in itertools.count(1):
        source, output = tmp_path / f"theirs_{number}", tmp_path / f"ours_{number}"
        shutil.copytree(theirs, source)
        with monkeypatch.context() as patch:
            stop = Stop(patch, number)
            try:
                to_tensorflow(source, output, delete_source=True)
                break
            except KeyboardInterrupt:
                assert stop.calls in (number, number + 1)  # with what clears up behind it
        to_tensorflow(source, output, delete_source=True)
        assert_taken(source, output, wanted)
    assert number > 30


def test_what_is_left_of_a_whole_conversion_goes(sharded, tmp_path):
    source, wanted = sharded
    to_tensorflow(source, tmp_path / "ours", delete_source=True)
    (tmp_path / "ours" / ".taken_in").mkdir()
    (tmp_path / "ours" / ".taken_in" / "model.data-00000-of-00001").touch()
    with pytest.raises(CheckpointError, match="must be a file that can be read"):
        to_tensorflow(source, tmp_path / "ours", delete_source=True)
    assert_taken(source, tmp_path / "ours", wanted)


def test_another_file_of_the_same_name_is_not_deleted(sharded, tmp_path, monkeypatch):
    source, _ = sharded
    first = sorted(source.glob("*.safetensors"))[0]
    shutil.copy(first, tmp_path / "kept")
    with monkeypatch.context() as patch:
        patch.setattr(taken_in.TakenIn, "write", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            to_tensorflow(source, tmp_path / "ours", delete_source=True)
    shutil.copy(tmp_path / "kept", first)
    with pytest.raises(CheckpointError, match=r"must be the file that was taken in before"):
        to_tensorflow(source, tmp_path / "ours", delete_source=True)
    assert first.exists()


def test_a_disk_that_is_too_small_is_told_before(sharded, tmp_path, monkeypatch):
    source, _ = sharded
    usage = type("usage", (), {"free": 100})
    monkeypatch.setattr(taken_in.shutil, "disk_usage", lambda path: usage)
    for delete in (False, True):
        with pytest.raises(CheckpointError, match="/ours: .* GB must be free for the") as found:
            to_tensorflow(source, tmp_path / "ours", delete_source=delete)
        assert ("--delete_source" in str(found.value)) != delete
    assert len(list(source.glob("*.safetensors"))) > 3
    with pytest.raises(ConfigError, match="--delete_source: needs --program hugging_face"):
        to_tensorflow(source, tmp_path / "ours", "google_bert", delete_source=True)


def test_random_weights_are_a_model_that_converts(tmp_path):
    write_model(tmp_path / "one", "gptj")
    to_tensorflow(tmp_path / "one", tmp_path / "plain")
    path = tmp_path / "plain" / "params.yaml"
    params = load_params(path)
    done = write_random_model(params, "it", tmp_path / "theirs", "bfloat16", max_shard_bytes=2000)
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    reader = HuggingFaceReader(tmp_path / "theirs")
    assert reader.shapes == HuggingFaceReader(tmp_path / "one").shapes
    assert np.all(reader.read("transformer.ln_f.weight") == 1)
    assert np.all(reader.read("transformer.ln_f.bias") == 0)
    assert 0.015 < reader.read("transformer.wte.weight").std() < 0.025
    again = to_tensorflow(tmp_path / "theirs", tmp_path / "ours")
    assert again.weights == done.weights
