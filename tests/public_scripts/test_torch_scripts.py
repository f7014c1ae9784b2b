"""Training loops as the public writes them for PyTorch, by torch.compile(backend="cerebras")."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from cerebras_tf.torch_compile.backend import register

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-5


def test_torch_finds_the_backend_by_the_entry_point(tmp_path):
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    (group,) = re.findall(r'"(torch_dynamo_backends)": \["', text)
    (entry,) = re.findall(rf'"{group}": \["(.+)"\]', text)
    folder = tmp_path / "site" / "cerebras_tf_entry-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: cerebras_tf_entry\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    path = os.pathsep.join([str(ROOT), str(folder.parent)])
    program = (
        "import torch\nprint(torch.compile(lambda x: x + 1, backend='cerebras')(torch.ones(1)))"
    )
    environment = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert "tensor([2.])" in ran.stdout, ran.stderr[-3000:]


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a script of this folder, whose graphs must all be captured; returns what it prints."""
    register()
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # Lightning sets it

    def printed(script, *arguments):
        torch.compiler.reset()
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*runs eagerly")
            runpy.run_path(str(HERE / script), run_name="__main__")
        return capsys.readouterr().out

    yield printed
    torch.compiler.reset()


def losses(printed):
    return [float(number) for number in re.findall(r"loss (\d+\.\d+)", printed)]


def assert_same_losses(run, script, *arguments, count=20):
    eager = run(script, *arguments)
    ours = run(script, *arguments, "--backend", "cerebras")
    wanted, found = losses(eager), losses(ours)
    assert len(found) == len(wanted) >= count
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    return eager, ours


@pytest.fixture
def characters(tmp_path):
    source = np.random.default_rng(0)
    for split, size in {"train": 4000, "val": 500}.items():
        text = np.cumsum(source.integers(0, 3, size)) % 65
        text.astype(np.uint16).tofile(tmp_path / f"{split}.bin")
    return tmp_path


def test_a_small_gpt_with_accumulation(run, characters, tmp_path):
    folders = ["--data_dir", str(characters), "--out_dir", str(tmp_path / "out")]
    eager, ours = assert_same_losses(run, "torch_nanogpt.py", *folders)
    for name in ("step", "sample"):
        lines = [re.findall(rf"^{name}.*", ran, re.MULTILINE) for ran in (eager, ours)]
        assert len(lines[0]) == len(lines[1]) > 0
    assert lines[0] == lines[1]
    assert (tmp_path / "out" / "ckpt.pt").exists()


def test_a_small_gpt_in_bfloat16_with_dropout(run, characters, tmp_path):
    folders = ["--data_dir", str(characters), "--out_dir", str(tmp_path / "out")]
    settings = [*folders, "--dtype", "bfloat16", "--dropout", "0.1", "--backend", "cerebras"]
    ran = run("torch_nanogpt.py", *settings)
    assert losses(ran) == losses(run("torch_nanogpt.py", *settings))
    assert np.mean(losses(ran)[-3:]) < losses(ran)[0] - 0.3


def test_a_lightning_module(run):
    pytest.importorskip("lightning")
    _, ours = assert_same_losses(run, "torch_lightning.py")
    assert "val_acc" in ours


def test_the_trainer_of_transformers(run, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    assert_same_losses(run, "torch_trainer.py", "--output_dir", str(tmp_path / "out"))
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_loop_of_accelerate(run):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    assert_same_losses(run, "torch_accelerate.py")
