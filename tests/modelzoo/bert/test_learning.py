"""The loss of the masked words falls on text made here."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.train import run

ROOT = Path(__file__).resolve().parents[3]


def losses(config, changes, tmp_path):
    """Trains on the wafer by a config with other values and returns the loss of every event."""
    tree = yaml.safe_load((ROOT / "configs" / config).read_text(encoding="utf-8"))
    for key, values in changes.items():
        tree[key].update(values)
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(tree))
    run.main(["-m", "train", "-p", str(params), "-o", str(tmp_path / "run")])
    found = {}
    for path in glob.glob(str(tmp_path / "run" / "events*")):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "train/cost_masked_lm":
                    found[event.step] = value.simple_value
    return [found[step] for step in sorted(found)]


@pytest.mark.slow
def test_bytes_of_text_with_a_pattern_are_learned(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.py").write_text("for value in (1, 2, 3):\n    print(value)\n" * 200)
    found = losses(
        "params_bert_tiny.yaml",
        {
            "train_input": {
                "data_dir": str(text),
                "eval_fraction": 0.0,
                "max_sequence_length": 32,
                "max_predictions_per_seq": 5,
                "batch_size": 16,
            },
            "eval_input": {"data_dir": str(text)},
            "model": {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_heads": 2,
                "filter_size": 128,
                "initializer": {"name": "truncated_normal", "stddev": 0.12},
            },
            "optimizer": {"learning_rate": 2.0e-3},
            "runconfig": {"max_steps": 320, "save_summary_steps": 40},
        },
        tmp_path,
    )
    # What a byte tells of its neighbours: without them the loss stays at the bytes' entropy, 2.8.
    assert found[0] > 5.0 and found[-1] < 2.0
