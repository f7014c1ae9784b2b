"""Compares 20 steps on the wafer with 20 steps of TensorFlow on the host: the GPT of the zoo."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import yaml

from modelzoo.gpt3.model import model_fn
from tests.e2e.host_and_wafer import assert_same_run, check_parity, train

pytestmark = pytest.mark.tf
CONFIG = Path(__file__).parents[2] / "configs" / "params_gpt3_tiny.yaml"
LENGTH = 12


def gpt(mixed_precision=False, micro_batches=1, **model):
    """The zoo's model_fn with the tiny configuration, made tinier."""
    tree = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    tree["train_input"].update(max_sequence_length=LENGTH, batch_size=3)
    tree["runconfig"]["micro_batches"] = micro_batches
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2, "filter_size": 32}
    tree["model"].update(sizes, mixed_precision=mixed_precision, **model)
    if mixed_precision:
        tree["optimizer"].update(loss_scaling_factor="dynamic", initial_loss_scale=2.0**10)

    def with_params(features, labels, mode, params):
        return model_fn(features, labels, mode, tree)

    return with_params


def batches():
    rng = np.random.default_rng(4)
    drawn = rng.integers(0, 256, (3, 3, LENGTH + 1)).astype(np.int32)
    padded = np.zeros((3, 3, LENGTH), np.int32)
    padded[:, 1, 9:] = 1
    return [
        ({"input_ids": ids[:, :-1], "input_mask": mask}, ids[:, 1:])
        for ids, mask in zip(drawn, padded)
    ]


@pytest.mark.parametrize("by_layer", [False, True])
def test_tiny_gpt_trains_as_on_the_host(by_layer, tmp_path):
    model = gpt(scale_attn_by_inverse_layer_idx=by_layer)
    host, _ = check_parity(model, batches(), tmp_path)
    assert host.losses[-1] < host.losses[0]


def test_gpt_in_half_precision_trains_as_in_float32(tmp_path):
    """The wafer computes in float32; the loss scale, a power of two, rounds nothing."""
    host = train(gpt(), batches(), tmp_path / "host", use_cs=False, measure=True)
    wafer = train(gpt(mixed_precision=True), batches(), tmp_path / "wafer", use_cs=True)
    extra = set(wafer.variables) - set(host.variables)
    assert any("loss_scale" in name for name in extra), extra
    for name in extra:
        del wafer.variables[name]
    assert_same_run(host, wafer)
