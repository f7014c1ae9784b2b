"""The demonstration of models larger than memory, on models that are not."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import types
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from benchmarks import larger_than_memory as demo
from cerebras_tf.bundle.index import read_index
from cerebras_tf.errors import CapacityError, CerebrasError, ConfigError
from cerebras_tf.memoryx import disk_speed
from modelzoo.commands.main import main

SMALL = {
    "model.hidden_size": 64,
    "model.num_heads": 4,
    "model.filter_size": 128,
    "model.num_hidden_layers": 2,
    "train_input.max_sequence_length": 32,
    "runconfig.memoryx_ram_gb": 0.2,
}


def given_of(case, folder):
    given = {"case": case, "folder": str(folder), "model": dict(SMALL), "steps": 2}
    given |= {"source": str(folder / "source"), "delete_source": True, "replaces": case == "gptj"}
    if case == "gptj":
        given["model"]["model.rotary_dim"] = 8
    return given


def run_stage(stage, given):
    return main(["bench", "larger_than_memory", "--stage", stage, "--given", json.dumps(given)])


def test_the_published_sizes_and_their_disk(tmp_path, capsys):
    assert main(["bench", "larger_than_memory", "gpt3", "--check", "--folder", str(tmp_path)]) in (
        0,
        2,
    )
    out = capsys.readouterr().out
    assert "gpt3: 2.65 billion weights, 31.8 GB with both moments" in out
    assert "10.6 weights + 21.2 moments + 10.6 gradients that wait for their norm = 42.4" in out
    main(["bench", "larger_than_memory", "gptj", "--check", "--folder", str(tmp_path)])
    out = capsys.readouterr().out
    assert "gptj: 6.05 billion weights, 48.4 GB with both moments" in out
    assert "24.2 weights + 24.2 moments + 2.0 files in transit = 50.4" in out


def test_a_disk_that_is_too_small_is_told(tmp_path, monkeypatch):
    usage = types.SimpleNamespace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(CapacityError, match=r"42.4 GB must be free. Received: 1.0 GB"):
        sizes = demo.sizes_of(demo.read_params(demo.CASES["gpt3"], tmp_path))
        demo.check_disk(tmp_path, demo.disk_needed(sizes, converts=False))


@pytest.mark.slow
def test_gptj_is_converted_trained_and_generates(tmp_path, capsys, monkeypatch):
    given = given_of("gptj", tmp_path)
    for stage in ("random", "convert"):
        assert run_stage(stage, given) == 0
    data = (tmp_path / "gptj_6b").glob("model.ckpt-0.data*")
    weights = sum(path.stat().st_size for path in data)
    # Room for the moments alone: new weights take the place of the checkpoint's.
    monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: int(1.1 * weights))
    for stage in ("train", "generate"):
        assert run_stage(stage, given) == 0
    assert not (tmp_path / "source").exists()
    out = capsys.readouterr().out
    assert out.count("peak memory: ") == 4
    assert "step 2: " in out and "% of sgemm around it" in out
    assert "generated tokens [" in out
    model_dir = tmp_path / "gptj_6b"
    entries = read_index(str(model_dir / "model.ckpt-2"))
    kinds = {entry.dtype for entry in entries.values()}
    assert kinds == {"float32", "bfloat16", "int64"}
    assert not list(model_dir.glob("model.ckpt-0.data*"))


@pytest.mark.slow  # gptj takes the same stage
def test_gpt3_is_trained_and_saved_once(tmp_path):
    given = given_of("gpt3", tmp_path)
    assert run_stage("train", given) == 0
    assert [p.name for p in (tmp_path / "gpt3_2p7b_pile").glob("*.index")] == ["model.ckpt-2.index"]


def test_what_was_planned_is_compared_with_what_was_measured(capsys):
    lines = [
        "a step reads 40.00 GB and writes 500 MB: 9 s at 3 and 4 GB/s, beside 1 s of products",
        "memoryx: 41 GB read, 0.5 GB written per step; waited for files 3 % of the time",
        "train: peak memory: 4.25 GiB",
    ]
    demo.report(demo.CASES["gpt3"], demo.Outcome(lines))
    out = capsys.readouterr().out
    assert "read a step: planned 40.00 GB, measured 41.00 GB (+2.5%)" in out
    assert "written a step: planned 0.50 GB, measured 0.50 GB (+0.0%)" in out
    assert "peak memory of training: 4.25 GiB (limit 8 GiB)" in out


def test_more_memory_than_the_limit_is_an_error():
    lines = ["train: peak memory: 8.01 GiB"]
    with pytest.raises(CapacityError, match="must take at most 8 GiB. Received: 8.01 GiB"):
        demo.report(demo.CASES["gpt3"], demo.Outcome(lines))


def arguments(*given):
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args([str(word) for word in given])


@pytest.fixture
def parts(monkeypatch):
    """Parts that run, each by its name, in place of the real ones; `fails` names the last."""
    state = types.SimpleNamespace(names=[], fails=None)

    def run_stage(stage, given, log):
        state.names.append(stage)
        folder = Path(given["folder"])
        makes = {"random": given["source"], "convert": folder / "gptj_6b"}
        Path(makes.get(stage, folder / "memoryx")).mkdir()
        if stage == state.fails:
            raise CerebrasError(f"{stage}: must succeed. Received: a failure. Look above.")
        return demo.Outcome()

    monkeypatch.setattr(demo, "run_stage", run_stage)
    monkeypatch.setattr(demo, "check_disk", lambda folder, needed: folder.mkdir(exist_ok=True))
    monkeypatch.setitem(demo.CASES, "gptj", dataclasses.replace(demo.CASES["gptj"], tokens=0))
    return state


@pytest.mark.parametrize("fails", ["convert", "train", None])
def test_what_the_command_made_goes_and_a_given_model_stays(tmp_path, parts, fails):
    source, folder = tmp_path / "theirs", tmp_path / "demo"
    source.mkdir()
    parts.fails = fails
    for given in ((), ("--source", source), ("--keep",)):
        parts.names.clear()
        ends = pytest.raises(CerebrasError) if fails else contextlib.nullcontext()
        with ends:
            demo.show(arguments("gptj", "--folder", folder, *given))
        assert ("random" in parts.names) == ("--source" not in given)
        left = {"gptj_6b"} if "--keep" in given else set()
        assert {path.name for path in folder.iterdir()} == left and source.exists()


@pytest.mark.parametrize("name", ["gptj_6b", "memoryx", "random_source"])
def test_folders_that_were_there_are_refused_and_stay(tmp_path, parts, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"{name} is made there, and removed"):
        demo.show(arguments("gptj", "--folder", tmp_path))
    assert (tmp_path / name).exists() and not parts.names
    demo.show(arguments("gptj", "--folder", tmp_path, "--check"))


def test_arguments_that_would_have_no_effect_are_refused(tmp_path):
    folder = ("--folder", tmp_path)
    with pytest.raises(ConfigError, match="--source: needs gptj, which is converted"):
        demo.show(arguments("gpt3", "--source", tmp_path, *folder))
    with pytest.raises(ConfigError, match="must be at most the 28 of gptj. Received: 29"):
        demo.show(arguments("gptj", "--layers", 29, *folder))
