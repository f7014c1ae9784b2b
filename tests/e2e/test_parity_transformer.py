"""Compares 20 steps on the wafer with 20 of TensorFlow on the host: the encoder-decoder."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import yaml

from modelzoo.transformer.model import model_fn
from modelzoo.transformer.pairs import FEATURES, Pairs, make_batch
from tests.e2e.host_and_wafer import check_parity

pytestmark = pytest.mark.tf
CONFIG = Path(__file__).parents[2] / "configs" / "params_transformer_tiny.yaml"


def transformer(micro_batches=1, **model):
    """The zoo's model_fn with the tiny configuration, made tinier."""
    tree = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    sizes = {"hidden_size": 16, "num_heads": 2, "filter_size": 32}
    tree["model"].update(sizes, **model)
    tree["runconfig"]["micro_batches"] = micro_batches

    def with_params(features, labels, mode, params):
        return model_fn(features, labels, mode, tree)

    return with_params


def batches(length=9):
    """Pairs of 1 to `length` tokens, and a row that only fills the batch."""
    rng = np.random.default_rng(4)
    sides = [[rng.integers(4, 260, n) for n in rng.integers(1, length - 1, 9)] for _ in range(2)]
    pairs = Pairs(*sides, length, length)
    made = [make_batch(pairs, range(i, i + 3), 4, length) for i in (0, 3, 6)]
    return [(dict(zip(FEATURES, batch)), batch[-1]) for batch in made]


@pytest.mark.parametrize("pre", [pytest.param(False, marks=pytest.mark.slow), True])
def test_transformer_with_label_smoothing_and_padding_trains_as_on_the_host(tmp_path, pre):
    model = transformer(label_smoothing=0.1, use_pre_normalization=pre)
    host, _ = check_parity(model, batches(), tmp_path)
    assert host.losses[-1] < host.losses[0]
