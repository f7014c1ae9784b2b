"""A model that is too large says so even where its data is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tf.errors import CapacityError, DataError

pytestmark = pytest.mark.tf
CONFIG = Path(__file__).parents[3] / "configs" / "params_gpt3_tiny.yaml"


def run_without_data(tmp_path):
    from modelzoo.common.train.run import main

    text = CONFIG.read_text(encoding="utf-8")
    text = text.replace("data_dir: null", f"data_dir: {tmp_path / 'nowhere'}")
    params = tmp_path / "params_gone.yaml"
    params.write_text(text, encoding="utf-8")
    main(["-m", "train", "-p", str(params), "-o", str(tmp_path / "run")])


def test_missing_data_of_a_model_that_fits_is_what_is_said(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        run_without_data(tmp_path)


def test_a_model_too_large_is_named_with_its_missing_data(tmp_path, monkeypatch):
    monkeypatch.setattr("cerebras_tf.runtime.capacity.available_bytes", lambda: 1000)
    with pytest.raises(CapacityError, match=r"needs .* GB of memory.*nowhere"):
        run_without_data(tmp_path)
