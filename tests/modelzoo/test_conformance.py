"""What every model of the registry does: it trains, resumes, evaluates, predicts and refuses.

The host, TensorFlow itself, is the oracle of the wafer. That a model trains on the wafer as on the
host is tested in tests/e2e/test_parity_zoo.py.
"""

from __future__ import annotations

import copy
import json
import shutil

import pytest
import yaml

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import CerebrasError, ConfigError, DataError
from modelzoo.common.config import registry
from modelzoo.common.config.params import load_params
from modelzoo.common.train import run
from tests.messages import raises
from tests.modelzoo.zoo import MODELS
from tests.reading import assert_same, scalars_of, variables_of

HOST = ("--device", "/cpu:0")


class Zoo:
    """A model with its data and its params file in a folder."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.tree = MODELS[name](folder)
        self.trained = None

    def call(self, mode, *flags, out="out", tree=None):
        """Runs a mode of the command line; returns the model folder."""
        path = self.folder / "params.yaml"
        path.write_text(yaml.safe_dump(tree or self.tree))
        run.main(["-m", mode, "-p", str(path), "-o", str(self.folder / out), *flags])
        return self.folder / out

    def train(self):
        """Trains all steps on the wafer, once; returns the model folder."""
        if not self.trained:
            self.trained = self.call("train", out="wafer")
        return self.trained


@pytest.fixture(scope="module", params=sorted(MODELS))
def zoo(request, tmp_path_factory):
    return Zoo(request.param, tmp_path_factory.mktemp("zoo"))


def predictions(folder):
    """Returns the rows and objects of a folder's predictions by file, without the side's name."""
    found = {}
    for path in sorted((folder / "predict").glob("*.json*")):
        lines = path.read_text().splitlines()
        rows = (
            list(map(json.loads, lines))
            if path.suffix == ".jsonl"
            else json.loads(path.read_text())
        )
        found[path.name.replace("_tf_", "_").replace("_cs_", "_")] = rows
    return found


def assert_close(found, expected, where=""):
    """Compares nested lists and dictionaries; numbers up to rounding."""
    assert type(found) is type(expected), where
    if isinstance(found, dict):
        assert list(found) == list(expected), where
        for key in found:
            assert_close(found[key], expected[key], f"{where}.{key}")
    elif isinstance(found, list):
        assert len(found) == len(expected), where
        for place, pair in enumerate(zip(found, expected)):
            assert_close(*pair, f"{where}[{place}]")
    elif isinstance(found, float):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4), where
    else:
        assert found == expected, where


def test_every_model_of_the_registry_is_here():
    assert sorted(MODELS) == registry.model_names()


def test_stopped_training_resumes_bit_for_bit(zoo):
    folder = zoo.train()
    whole = variables_of(folder)
    parts = zoo.folder / "parts"  # as of a run that was killed after its checkpoint of step 2
    later = shutil.ignore_patterns("*.ckpt-4*", "*.tfevents*")
    shutil.copytree(folder, parts, ignore=later)
    tf.train.update_checkpoint_state(str(parts), str(parts / "model.ckpt-2"))
    parts = variables_of(zoo.call("train", out="parts"))
    assert parts["global_step"] == 4
    assert_same(parts, whole)


def test_wafer_predicts_as_the_host_does(zoo):
    """That both sides evaluate alike is tested in test_evaluation.py, on untrained models."""
    folder = zoo.train()
    flags = ("--checkpoint_path", str(folder / "model.ckpt-4"))
    out = zoo.call("eval", *flags, out="wafer_results")
    assert (4, "loss") in scalars_of(out / "eval")
    wafer = predictions(zoo.call("predict", *flags, out="wafer_results"))
    host = predictions(zoo.call("predict", *flags, *HOST, out="host_results"))
    assert host
    assert_close(wafer, host)


def test_saved_params_are_those_of_the_run(zoo):
    folder = zoo.train()
    saved = load_params(str(folder / "params.yaml"))
    given = load_params(str(zoo.folder / "params.yaml"))
    assert saved.model == given.model and saved.optimizer == given.optimizer
    assert saved.train_input == given.train_input


def changed(zoo, section, **keys):
    tree = copy.deepcopy(zoo.tree)
    tree[section].update(keys)
    return tree


@pytest.mark.parametrize("section", ["model", "train_input", "optimizer", "runconfig"])
def test_unknown_key_is_refused(zoo, section):
    with raises(ConfigError, f"{section}.hiden_size", 7):
        zoo.call("train", *HOST, out="none", tree=changed(zoo, section, hiden_size=7))


def content(folder):
    """Returns the bytes of a folder's files."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_validation_accepts_what_runs_and_leaves_nothing(zoo):
    folder = zoo.train()
    before = content(folder)
    for mode in ("train_and_eval", "eval", "predict"):
        zoo.call(mode, "--validate_only", out=folder.name)
    zoo.call("train", "--validate_only", *HOST, out="new")
    assert content(folder) == before and not (zoo.folder / "new").exists()


def assert_nothing_left(folder, flags):
    """A run that is refused leaves its lock, and a validation nothing."""
    assert not list(folder.glob("model.ckpt*")) and (not flags or not folder.exists())


@pytest.mark.parametrize("flags", [(), ("--validate_only",)])
def test_missing_data_are_refused_before_the_first_step(zoo, flags):
    key = "src_data_dir" if zoo.name == "transformer" else "data_dir"
    tree = changed(zoo, "train_input", **{key: "nowhere"})
    with raises(DataError, "nowhere"):
        zoo.call("train", *HOST, *flags, out=f"none{flags}", tree=tree)
    assert_nothing_left(zoo.folder / f"none{flags}", flags)


@pytest.mark.parametrize("flags", [(), ("--validate_only",)])
def test_vocabulary_of_another_size_is_refused_before_the_first_step(zoo, flags):
    key = "src_vocab_size" if zoo.name == "transformer" else "vocab_size"
    tree = changed(zoo, "train_input", **{key: 5})
    with pytest.raises(CerebrasError) as error:
        zoo.call("train", *HOST, *flags, out=f"none{flags}", tree=tree)
    assert "vocab" in str(error.value)
    assert_nothing_left(zoo.folder / f"none{flags}", flags)
