"""Every YAML in configs/ is accepted by the schema of the model it names, and on its page.

This needs no TensorFlow. That the tables of the pages are right is tested beside each model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))


def test_there_are_configs():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_loads(path):
    from modelzoo.common.config.params import load_params

    params = load_params(path)
    assert params.runconfig is not None


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_is_on_the_page_of_models(path):
    page = path.parents[1] / "docs" / "reference" / "models.md"
    assert f"| `{path.stem.removeprefix('params_')}` |" in page.read_text(encoding="utf-8")
