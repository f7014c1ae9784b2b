"""A batch that does not fit is refused with parts of it, or smaller ones, that were tried."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.estimator import estimator
from cerebras_tf.estimator.smaller_batches import Trial, parts_of, with_settings
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
        r"Tried: no part of the batch fits; micro_batches: 256 needs \S+ GB of the 1e-06 GB.",
        str(raised.value),
    )
    return raised.value.needed_bytes


def moving(features, labels, mode, params):
    """Keeps a mean of the batch, so that parts of it would not be the same step."""
    spec = deep(features, labels, mode, params)
    kept = tf.compat.v1.get_variable("kept", [WIDTH], trainable=False)
    update = kept.assign(0.9 * kept + 0.1 * tf.reduce_mean(features, 0))
    return spec._replace(train_op=tf.group(spec.train_op, update))


def refusal(folder, config, params=None, model=deep):
    made = build(folder, params, model, **config)
    with pytest.raises(BatchCapacityError) as raised:
        made.train(batches([ROWS], ROWS))
    with pytest.raises(BatchCapacityError) as validated:
        made.compile(batches([ROWS], ROWS), validate_only=True)
    assert str(validated.value) == str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "rows, before, parts",
    [
        (12, 1, [2, 4, 12]),
        (9, 1, [3, 9]),
        (7, 1, [7]),
        (1, 1, []),
        (12, 2, [4, 12]),
        (12, 3, [6, 12]),
        (12, 12, []),
    ],
)
def test_batches_of_equal_size_are_tried(rows, before, parts):
    assert list(parts_of(rows, before)) == parts


def test_trials_go_on_from_the_parts_that_are_set(tmp_path, least, monkeypatch):
    """Each number of parts is compiled once, also where the caller wants the program."""
    tried: list[int] = []
    compile_trial = estimator.CerebrasEstimator._tried

    def kept(self, call, params, micro_batches):
        tried.append(micro_batches)
        return compile_trial(self, call, params, micro_batches)

    monkeypatch.setattr(estimator.CerebrasEstimator, "_tried", kept)
    state = 2 * DEPTH * 2 * 4 * WIDTH**2 * 4
    monkeypatch.setattr(capacity, "available_bytes", lambda: state + int(0.4 * least))
    made = build(tmp_path, model=deep, micro_batches=2)
    with pytest.raises(BatchCapacityError, match=r"Tried: micro_batches: \d+ needs"):
        made.compile(batches([ROWS], ROWS), save=False)
    assert tried[0] == 4 and sorted(set(tried)) == tried


def test_the_parts_that_are_named_fit_and_larger_ones_do_not(tmp_path, least):
    config = {"wafer_memory_gb": 0.4 * least / 1e9}
    text = refusal(tmp_path, config)
    told = re.search(
        r"Tried: micro_batches: (\d+) needs (\S+) GB of the (\S+) GB, and an estimated \S+ \w+ or "
        r"more a step\.$",
        text,
    )
    assert told is not None, text
    parts, needed, there = int(told[1]), float(told[2]), float(told[3])
    assert 2 < parts < ROWS and needed <= there == pytest.approx(config["wafer_memory_gb"], 1e-2)
    _, _, session = trained(tmp_path / "run", [ROWS], known=ROWS, micro_batches=parts, **config)
    assert activation_bytes(session) <= 1.01e9 * needed
    with pytest.raises(BatchCapacityError):
        trained(tmp_path / "half", [ROWS], known=ROWS, micro_batches=parts // 2, **config)


def test_where_parts_would_be_another_step_smaller_batches_are_named(tmp_path, least):
    budget = {"wafer_memory_gb": 0.7 * least / 1e9}
    assert "Tried: a batch of " in refusal(tmp_path / "a", budget, None, moving)
    text = refusal(tmp_path / "b", budget, ZOO, moving)
    told = re.search(
        r"train_input.batch_size: (\d+) with optimizer.grad_accum_steps: (\d+) needs", text
    )
    assert told is not None and int(told[1]) * int(told[2]) == 3 * ROWS
    assert ZOO["optimizer"] == {"grad_accum_steps": 3}


def test_a_trial_of_parts_tells_a_model_of_modelzoo_as_the_setting_would():
    """Its loss is weighed by parts where runconfig has them; else the parts are another program."""
    params = {**ZOO, "runconfig": {"micro_batches": 1}}
    changed = with_settings(params, Trial(ROWS, 3, 4))
    assert changed == {**ZOO, "runconfig": {"micro_batches": 4}}
    assert params["runconfig"] == {"micro_batches": 1}


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

    assert re.search(r"Tried: micro_batches: \d+ needs", told(state + int(0.8 * least)))
    assert "Tried" not in told(state // 2)  # no batch is small enough
