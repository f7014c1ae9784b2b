"""Scripts as the public wrote them for tf.estimator run unchanged by `cerebras-tf python`."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tolerances import TOLERANCES

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

HERE = Path(__file__).parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of this folder in an environment without our choice of Keras."""
    kept = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    command = [sys.executable, "-m", "modelzoo.commands.main", "python", str(HERE / script)]
    ran = subprocess.run(
        [*command, *arguments],
        env={**kept, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran


def test_a_residual_network_on_cifar(tmp_path):
    source = np.random.default_rng(0)
    for name, count in {"data_batch_1.bin": 64, "test_batch.bin": 32}.items():
        labels = source.integers(0, 10, count)
        images = source.integers(0, 60, (count, 3072)) + 19 * labels[:, None]
        np.column_stack([labels, images]).astype(np.uint8).tofile(tmp_path / name)
    folders = [f"--model_dir={tmp_path}/model", f"--export_dir={tmp_path}/export"]
    ran = run("cifar10_main.py", f"--data_dir={tmp_path}", *folders)
    steps = re.findall(r"^evaluation: (\d+) ([\d.]+)$", ran.stdout, re.MULTILINE)
    assert [step for step, _ in steps] == ["4", "8"]
    assert "cross_entropy = " in ran.stderr
    (exported,) = (tmp_path / "export").iterdir()
    assert (exported / "saved_model.pb").exists()


def test_fine_tuning_of_bert_with_a_tpu_estimator(tmp_path):
    source = random.Random(0)
    for name, count in {"train": 64, "dev": 16}.items():
        lines = []
        for _ in range(count):
            label = source.randrange(2)
            word = ("bad", "good")[label]
            lines.append(f"{label}\tthe {source.choice(['film', 'plot'])} was {word}\n")
        (tmp_path / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    ran = run("run_classifier.py", f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/out")
    results = (tmp_path / "out" / "eval_results.txt").read_text(encoding="utf-8")
    found = dict(line.split(" = ") for line in results.splitlines())
    assert float(found["eval_accuracy"]) > 0.9
    assert found["global_step"] == "80"
    assert "predicted 16 sentences" in ran.stdout


def test_a_canned_classifier_with_feature_columns(tmp_path):
    source = random.Random(0)
    lines = []
    for _ in range(200):
        age, hours = source.randrange(18, 70), source.randrange(10, 60)
        income = ">50K" if age > 35 and hours > 30 else "<=50K"
        work = source.choice(["Private", "State-gov", "Self-emp"])
        lines.append(f"{age},{hours},{work},job{source.randrange(9)},{income}\n")
    (tmp_path / "census.csv").write_text("".join(lines), encoding="utf-8")
    ran = run("census_dnn.py", "--data", f"{tmp_path}/census.csv", "--model_dir", f"{tmp_path}/m")
    (accuracy,) = re.findall(r"Test set accuracy: ([\d.]+)", ran.stdout)
    assert float(accuracy) > 0.85
    assert ran.stdout.count("prediction ") == 3


def test_train_and_evaluate_with_exporters(tmp_path):
    ran = run("housing_exporter.py", "--model_dir", str(tmp_path), "--max_steps", "150")
    step, mae = re.search(r"final: step (\d+), mae ([\d.]+)", ran.stdout).groups()
    assert step == "150" and float(mae) < 1.5
    assert len(list((tmp_path / "export" / "best").iterdir())) in (1, 2)
    assert len(list((tmp_path / "export" / "final").iterdir())) == 1


def test_a_run_py_of_the_original_platform(tmp_path):
    ran = run("original_run.py", "--model_dir", str(tmp_path), "--cs_ip", "127.0.0.1")
    losses = [float(loss) for loss in re.findall(r"loss = ([\d.]+), rate", ran.stderr)]
    assert len(losses) == 6
    np.testing.assert_allclose(losses[:3], losses[3:], rtol=TOLERANCES["training_loss"][0])
    assert ran.stdout.count("distinct kernels: True") == 2
    assert "start equal" not in ran.stderr
