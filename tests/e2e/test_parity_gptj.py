"""Compares 20 steps on the wafer with 20 of TensorFlow on the host: GPT-J and GPT-NeoX."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import yaml

from modelzoo.gptj.model import model_fn
from tests.e2e.host_and_wafer import Run, batches, check_parity, estimator

pytestmark = pytest.mark.tf
CONFIGS = Path(__file__).parents[2] / "configs"
LENGTH = 12


def tiny(name, **model):
    """The zoo's model_fn with a tiny configuration, made tinier."""
    tree = yaml.safe_load((CONFIGS / f"params_{name}_tiny.yaml").read_text(encoding="utf-8"))
    tree["train_input"].update(max_sequence_length=LENGTH, batch_size=3)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2, "filter_size": 32}
    tree["model"].update(sizes, rotary_dim=4, **model)

    def with_params(features, labels, mode, params):
        return model_fn(features, labels, mode, tree)

    return with_params


def examples():
    """Three batches; of one sequence the article does not count, of another the end is padding."""
    rng = np.random.default_rng(4)
    drawn = rng.integers(0, 256, (3, 3, LENGTH + 1)).astype(np.int32)
    uncounted = np.zeros((3, 3, LENGTH), np.int32)
    uncounted[:, 0, :5] = uncounted[:, 1, 9:] = 1
    return [
        ({"input_ids": ids[:, :-1], "input_mask": mask}, ids[:, 1:])
        for ids, mask in zip(drawn, uncounted)
    ]


SERIAL = {"use_parallel_residual": False, "rotary_emb_base": 100.0}


@pytest.mark.parametrize(
    "name, model",
    [("gptj", {}), pytest.param("gpt_neox", {}, marks=pytest.mark.slow), ("gpt_neox", SERIAL)],
)
def test_tiny_model_trains_as_on_the_host(name, model, tmp_path):
    host, _ = check_parity(tiny(name, **model), examples(), tmp_path)
    assert host.losses[-1] < host.losses[0]


def test_tied_gptj_trains_as_on_the_host(tmp_path):
    _, wafer = check_parity(tiny("gptj", share_embedding_weights=True), examples(), tmp_path)
    assert "bias" in wafer.variables


@pytest.mark.parametrize("name", ["gptj", "gpt_neox"])
def test_attention_and_loss_of_tiny_model_are_fused(name, tmp_path):
    """Neither scores nor logits are ever held whole."""
    made = estimator(tiny(name), tmp_path, Run())
    program = made.compile(batches(examples()), save=False)
    ops = [instruction.op for body in program.bodies for instruction in body]
    assert "attention" in ops and "linear_softmax_xent_train" in ops
    assert not {"softmax", "sparse_softmax_xent"} & set(ops)
