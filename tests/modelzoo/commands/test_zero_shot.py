"""`cerebras-tf zero_shot` on a small model and tasks made here."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

import yaml

from cerebras_tf.errors import CheckpointError, ConfigError, DataError
from modelzoo.commands.configs import config_path
from modelzoo.commands.main import run_command
from tests.messages import raises
from tests.modelzoo.language_models import SmallModel, small_tree
from tests.reading import scalars_of

CHOICES = [
    {"context": "one two", "choices": ["three", "x"], "answer": 0},
    {"context": "", "choices": ["so", "it", "goes"], "answer": 2},
]


@pytest.fixture
def call(tmp_path):
    """Returns a function that evaluates one task and gives results and scores."""
    SmallModel("gptj", tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(small_tree("gptj")))

    def evaluate(rows, *flags, device="/cpu:0"):
        task = tmp_path / "made.jsonl"
        task.write_text("\n".join(map(json.dumps, rows)))
        command = ["-p", f"{tmp_path}/params.yaml", "-o", str(tmp_path), "--tasks", str(task)]
        command += ["--device", device] if device else []
        run_command(["zero_shot", *command, *flags])
        folder = tmp_path / "zero_shot"
        results = [json.loads(line) for line in (folder / "made.jsonl").read_text().splitlines()]
        return results, json.loads((folder / "scores.json").read_text())["0"]

    return evaluate


def test_multiple_choice_is_scored_alike_on_host_and_wafer(call, tmp_path, capsys):
    results, scores = call(CHOICES, "--batch_size", "2")
    expected = sum(row["choice"] == row["answer"] for row in results) / 2
    assert scores["zero_shot/made/acc"] == expected
    assert f"made: 2 rows, acc {expected:.4f}" in capsys.readouterr().out
    on_wafer, wafer_scores = call(CHOICES, device=None)
    assert wafer_scores == scores
    for row, other in zip(results, on_wafer):
        assert row["log_probs"] == pytest.approx(other["log_probs"], abs=1e-3)
    tags = {tag for _, tag in scalars_of(tmp_path / "zero_shot")}
    assert tags == {f"zero_shot/made/{name}" for name in ("acc", "acc_norm", "acc_bytes")}


def test_last_words_are_scored(call):
    results, scores = call([{"text": "so it goes"}, {"text": "a b"}], "--mode", "last_word")
    assert [row["word"] for row in results] == ["goes", "b"]
    assert set(scores) == {"zero_shot/made/acc", "zero_shot/made/perplexity"}


def test_mistakes_are_refused(call, tmp_path):
    with raises(DataError, "made.jsonl:2", "tokens"):
        call([CHOICES[0], {"context": "one", "choices": ["two" * 500, "x"], "answer": 0}])
    with raises(CheckpointError, "none"):
        call(CHOICES, "--checkpoint_path", "none")
    with raises(ConfigError, "--tasks"):
        run_command(["zero_shot", "-p", "x.yaml", "--tasks", "a/made.jsonl", "b/made.jsonl"])
    other = ["-p", config_path("bert_tiny"), "--tasks", str(tmp_path / "made.jsonl")]
    with raises(ConfigError, "model_name bert"):
        run_command(["zero_shot", *map(str, other)])
