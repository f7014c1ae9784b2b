"""GPT-2 small within less than a third of what its batch needs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")


from modelzoo.common.config import registry
from modelzoo.common.config.params import load_params
from modelzoo.common.train.estimator import make_estimator

CONFIG = Path(__file__).parents[3] / "configs" / "params_gpt2_small.yaml"


def estimator_of(folder, **settings):
    """(estimator, its parameters)."""
    given = {"runconfig.mode": "train", "runconfig.model_dir": str(folder), **settings}
    params = load_params(str(CONFIG), given)
    model, _ = registry.load_model(params.model_name)
    return make_estimator(model.model_fn, params, use_cs=True), params


@pytest.mark.slow
def test_gpt2_small_at_its_own_batch_is_compiled_within_6_gb(tmp_path):
    """Shapes only: 21.8 GB without the setting."""
    setting = {"runconfig.wafer_memory_gb": 6.0}
    estimator, params = estimator_of(tmp_path, **setting)
    assert params.train_input.batch_size == 32 and params.train_input.max_sequence_length == 1024
    _, data = registry.load_model(params.model_name)
    program = estimator.compile(data.INPUTS.blank, save=False)
    assert program.arena_bytes + program.scratch_bytes <= 6e9
