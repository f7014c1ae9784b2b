"""A batch that does not fit is refused with smaller ones that were tried."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.estimator import estimator
from cerebras_tf.estimator.smaller_batches import parts_of
from cerebras_tf.runtime import capacity
from tests.estimator.regression import build
from tests.estimator.test_activation_memory import (
    DEPTH,
    ROWS,
    WIDTH,
    activation_bytes,
    batches,
    deep,
    trained,
)

pytestmark = pytest.mark.tf
ZOO = {"train_input": {"batch_size": ROWS}, "optimizer": {"grad_accum_steps": 3}}


@pytest.fixture(scope="module")
def least(tmp_path_factory):
    """Bytes that the batch takes at the least."""
    with pytest.raises(BatchCapacityError) as raised:
        trained(tmp_path_factory.mktemp("least"), [ROWS], known=ROWS, wafer_memory_gb=1e-6)
    assert re.search(
        r"Tried: no smaller batch fits; a batch of 1 in place of 256 needs \S+ GB of the 1e-06 GB.",
        str(raised.value),
    )
    return raised.value.needed_bytes


def refusal(folder, config, params=None):
    made = build(folder, params, deep, **config)
    with pytest.raises(BatchCapacityError) as raised:
        made.train(batches([ROWS], ROWS))
    with pytest.raises(BatchCapacityError) as validated:
        made.compile(batches([ROWS], ROWS), validate_only=True)
    assert str(validated.value) == str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("rows, parts", [(12, [2, 4, 12]), (9, [3, 9]), (7, [7]), (1, [])])
def test_batches_of_equal_size_are_tried(rows, parts):
    assert list(parts_of(rows)) == parts


def test_the_batch_that_is_named_fits_and_the_one_before_does_not(tmp_path, least):
    config = {"wafer_memory_gb": 0.4 * least / 1e9}
    text = refusal(tmp_path, config)
    told = re.search(
        r"Tried: a batch of (\d+) in place of 256 needs (\S+) GB of the (\S+) GB, and an estimated "
        r"\S+ \w+ or more a step\.$",
        text,
    )
    assert told is not None, text
    rows, needed, there = int(told[1]), float(told[2]), float(told[3])
    assert 1 < rows < ROWS and needed <= there == pytest.approx(config["wafer_memory_gb"], 1e-2)
    _, _, session = trained(tmp_path / "smaller", [rows], known=rows, **config)
    assert activation_bytes(session) <= 1.01e9 * needed
    if 2 * rows < ROWS:
        with pytest.raises(BatchCapacityError):
            trained(tmp_path / "twice", [2 * rows], known=2 * rows, **config)


def test_settings_are_named_as_params_of_modelzoo_have_them(tmp_path, least):
    text = refusal(tmp_path, {"wafer_memory_gb": 0.7 * least / 1e9}, ZOO)
    told = re.search(
        r"train_input.batch_size: (\d+) with optimizer.grad_accum_steps: (\d+) needs", text
    )
    assert told is not None and int(told[1]) * int(told[2]) == 3 * ROWS
    assert ZOO["optimizer"] == {"grad_accum_steps": 3}


def test_sizes_that_only_data_tell_are_not_tried(tmp_path):
    with pytest.raises(BatchCapacityError) as raised:
        trained(tmp_path, [ROWS], wafer_memory_gb=1e-6)
    assert "Tried" not in str(raised.value)


def test_the_machines_own_memory_counts_too(tmp_path, least, monkeypatch):
    """Validation says so, and refuses nothing."""
    state = 2 * DEPTH * 2 * 4 * WIDTH**2 * 4  # weights and momentum
    said: list[str] = []
    monkeypatch.setattr(estimator, "say", lambda text, *given: said.append(text % given))

    def told(available_bytes):
        said.clear()
        monkeypatch.setattr(capacity, "available_bytes", lambda: available_bytes)
        build(tmp_path, model=deep).compile(batches([ROWS], ROWS), validate_only=True)
        (line,) = [line for line in said if "would be refused: this model needs" in line]
        return line

    assert re.search(r"Tried: a batch of \d+ in place of 256 needs", told(state + least // 2))
    assert "Tried" not in told(state // 2)  # no batch is small enough
