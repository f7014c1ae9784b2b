"""Predictions compared with measurements: within 15 % of those fitted on, within 20 % of others."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from cerebras_tf.wafer.pipelined import predict_pipelined, predict_split
from cerebras_tf.wafer.system import EFFICIENCY, HOST_STEP, Release, load_system
from cerebras_tf.wafer.transformer import transformer
from cerebras_tf.wafer.validation import measured_rows

SYSTEM = load_system()
ROWS = measured_rows(SYSTEM)
BERT_BASE = {
    "hidden": 768,
    "layers": 12,
    "heads": 12,
    "filter": 3072,
    "vocabulary": 30522,
    "sequence": 128,
    "predictions": 20,
}


def rows_of(model):
    found = [row for row in ROWS if row.name == model]
    assert found
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}-{row.release}-{row.about[:12]}")
def test_predictions_are_as_near_to_measurements_as_promised(row):
    assert abs(row.residual) <= (0.15 if row.fitted else 0.20)


def test_there_are_rows_that_nothing_was_fitted_on():
    assert {row.name for row in ROWS if not row.fitted} == {"bert_large_msl128", "gpt3_xl"}


def fitted_constants():
    """The constant of every release that has fitted rows.

    It makes the residuals of the release's fitted rows, as logarithms, sum to zero.
    """
    found = {}
    for release in SYSTEM.releases.values():
        value = release.value
        for _ in range(40):
            changed = Release(release.name, release.constant, value)
            trial = replace(SYSTEM, releases={**SYSTEM.releases, release.name: changed})
            rows = [row for row in measured_rows(trial, release.name) if row.fitted]
            if not rows:
                break
            error = sum(math.log(row.predicted / row.rate) for row in rows) / len(rows)
            if abs(error) < 1e-9:
                break
            value *= math.exp(-error if release.constant == EFFICIENCY else error)
        else:
            rows = []
        if rows:
            found[release.name] = value
    return found


def test_constants_of_the_file_are_those_that_its_rows_give():
    fitted = fitted_constants()
    assert set(fitted) == set(SYSTEM.releases)
    for name, value in fitted.items():
        assert SYSTEM.releases[name].value == pytest.approx(value, rel=1e-3)


def test_a_release_has_one_constant():
    constants = {release.constant for release in SYSTEM.releases.values()}
    assert constants == {EFFICIENCY, HOST_STEP}
    assert all(0 < r.value < 1 for r in SYSTEM.releases.values() if r.constant == EFFICIENCY)


def test_fc_mnist_is_bound_by_the_host():
    for row in rows_of("fc_mnist"):
        assert row.prediction.bound == "host"
        assert row.prediction.host_s > 5 * row.prediction.wafer_s


def test_a_step_of_gptj_is_the_sum_of_its_parts():
    for row in rows_of("gptj_6b"):
        found = row.prediction
        parts = [item.cycles for item in found.layers]
        for cause in ("compute", "fabric", "sram", "bubbles", "software", "link"):
            assert sum(getattr(part, cause) for part in parts) == pytest.approx(
                getattr(found.cycles, cause)
            )
        assert found.cycles.total / SYSTEM["clock"] == pytest.approx(found.step_s)
        # Multiply-adds of 77.6 TFLOP a sample, of which the forward pass is made twice.
        dense_s = 77.6e12 * row.batch / row.csx / SYSTEM.flops_per_s
        assert found.cycles.compute / SYSTEM["clock"] == pytest.approx(dense_s * 4 / 3, rel=0.01)
        assert found.bound == "compute"


def test_utilisation_is_that_of_real_runs():
    for row in ROWS:
        if row.name != "fc_mnist":
            assert 0.09 < row.prediction.utilisation < 0.25


@pytest.mark.parametrize("batch", [256, 1024])
def test_copies_of_bert_base_are_faster_than_one(batch):
    workload = transformer("bert_base", batch, **BERT_BASE)
    one = predict_pipelined(workload, SYSTEM)
    many = predict_pipelined(workload, SYSTEM, multireplica=True)
    assert many.replicas > 1 and not many.faults
    assert 1.5 <= many.samples_per_s / one.samples_per_s <= 1.9
    assert many.global_batch == batch * many.replicas


@pytest.mark.parametrize("batch", [1, 7, 256])
def test_copies_that_share_a_batch_divide_it(batch):
    workload = transformer("bert_base", batch, **BERT_BASE)
    one = predict_pipelined(workload, SYSTEM)
    shared = predict_split(workload, SYSTEM)
    assert shared.global_batch == batch
    assert batch % shared.replicas == 0 and not shared.faults
    assert shared.samples_per_s >= one.samples_per_s
    assert (shared.replicas > 1) == (batch == 256)  # 7 cannot be split but into single samples


def test_gpt3_xl_takes_about_as_long_as_published():
    (row,) = rows_of("gpt3_xl")
    assert row.prediction.steps_per_s == pytest.approx(0.48, rel=0.2)


def test_the_page_has_the_table_of_residuals():
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "predict-a-cs2.md"
    page = page.read_text(encoding="utf-8")
    for row in ROWS:
        residual = f"{row.residual:+.1%}".replace("%", " %")
        assert f"| {residual if abs(row.residual) > 5e-4 else '0.0 %'} |" in page
        digits = f"{row.predicted:,.0f}" if row.predicted > 100 else f"{row.predicted:.2f}"
        assert f"| {digits} |" in page
