"""Training loops as the public writes them for PyTorch, by torch.compile(backend="cerebras")."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is an extra")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-5


@pytest.fixture
def run(tmp_path):
    """Runs a script of this folder, with the package's entry points as if it were installed."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    (group,) = re.findall(r'"(torch_dynamo_backends)": \["', text)
    (entry,) = re.findall(rf'"{group}": \["(.+)"\]', text)
    folder = tmp_path / "site" / "cerebras_tf_entry-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: cerebras_tf_entry\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    path = os.pathsep.join([str(ROOT), str(folder.parent)])

    def started(script, *arguments):
        ran = subprocess.run(
            [sys.executable, str(HERE / script), *arguments],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return ran

    return started


def losses(ran):
    return [float(number) for number in re.findall(r"loss (\d+\.\d+)", ran.stdout)]


def assert_same_losses(run, script, *arguments, count=20):
    eager = run(script, *arguments)
    ours = run(script, *arguments, "--backend", "cerebras")
    wanted, found = losses(eager), losses(ours)
    assert len(found) == len(wanted) >= count
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    assert "runs eagerly" not in ours.stderr
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
        lines = [re.findall(rf"^{name}.*", ran.stdout, re.MULTILINE) for ran in (eager, ours)]
        assert len(lines[0]) == len(lines[1]) > 0
    assert lines[0] == lines[1]
    assert (tmp_path / "out" / "ckpt.pt").exists()


def test_a_small_gpt_in_bfloat16_with_dropout(run, characters, tmp_path):
    folders = ["--data_dir", str(characters), "--out_dir", str(tmp_path / "out")]
    settings = [*folders, "--dtype", "bfloat16", "--dropout", "0.1", "--backend", "cerebras"]
    ran = run("torch_nanogpt.py", *settings)
    assert "runs eagerly" not in ran.stderr
    assert losses(ran) == losses(run("torch_nanogpt.py", *settings))
    assert np.mean(losses(ran)[-3:]) < losses(ran)[0] - 0.3


def test_a_lightning_module(run):
    pytest.importorskip("lightning")
    _, ours = assert_same_losses(run, "torch_lightning.py")
    assert "val_acc" in ours.stdout


def test_the_trainer_of_transformers(run, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    assert_same_losses(run, "torch_trainer.py", "--output_dir", str(tmp_path / "out"))
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_loop_of_accelerate(run):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    assert_same_losses(run, "torch_accelerate.py")
