"""Checks that training may move between host and wafer at any checkpoint, and leaves no seam."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from tests.e2e import models
from tests.e2e.host_and_wafer import Run, assert_same_run, estimator, input_from, variables_of

pytestmark = pytest.mark.tf


def train_in_parts(model_fn, arrays, model_dir, parts, measure=False):
    """Trains parts of (last step, whether on the wafer), each by a new estimator."""
    run = Run()
    start = 0
    for last, use_cs in parts:
        made = estimator(model_fn, model_dir, run, measure)
        made.train(input_from(arrays, start), max_steps=last, use_cs=use_cs)
        start = last
    run.variables = variables_of(model_dir)
    return run


def gpt():
    return models.language_model(), models.tokens()


@pytest.fixture(scope="module")
def pure_runs(tmp_path_factory):
    """30 steps on the host and 30 on the wafer."""
    folder = tmp_path_factory.mktemp("pure")
    host = train_in_parts(*gpt(), folder / "host", [(30, False)], measure=True)
    wafer = train_in_parts(*gpt(), folder / "wafer", [(30, True)])
    wafer.peaks = host.peaks
    return host, wafer


def test_alternating_every_few_steps_equals_pure_runs(tmp_path, pure_runs):
    turns = [(7, False), (14, True), (21, False), (30, True)]
    mixed = train_in_parts(*gpt(), tmp_path, turns)
    for pure in pure_runs:
        assert_same_run(pure, mixed)


def test_stopping_and_going_on_on_the_wafer_changes_no_bit(tmp_path):
    model_fn, arrays = models.classifier(models.dropout_mlp), models.points()
    pure = train_in_parts(model_fn, arrays, tmp_path / "pure", [(12, True)])
    parts = train_in_parts(model_fn, arrays, tmp_path / "parts", [(5, True), (12, True)])
    assert parts.losses == pure.losses
    for name, content in pure.variables.items():
        assert (parts.variables[name] == content).all(), name
