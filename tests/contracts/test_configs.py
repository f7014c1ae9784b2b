"""Every YAML in configs/ is accepted by the schema of the model it names, without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").rglob("*.yaml"))


def test_there_are_configs():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_loads(path):
    from modelzoo.common.params import load_params

    params = load_params(path)
    assert params.runconfig is not None
