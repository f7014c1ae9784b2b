"""Compiling writes a report; training shows predictions beside measurements in TensorBoard."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.report.record import read_record
from tests.estimator.regression import build, dataset

pytestmark = pytest.mark.tf


def summaries(folder):
    """Tag and kind of every summary value, by step."""
    found = {}
    for path in folder.glob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag] = value
    return found


def test_compiling_writes_a_report_a_mode(tmp_path):
    made = build(tmp_path / "regression")
    made.compile(dataset, validate_only=True)
    assert not list(tmp_path.rglob("*.html"))
    made.compile(dataset)
    made.compile(dataset, mode=tf.estimator.ModeKeys.EVAL)
    made.compile(lambda: dataset().map(lambda x, y: x), mode=tf.estimator.ModeKeys.PREDICT)
    names = {path.name for path in (tmp_path / "regression" / "compiled").glob("*.html")}
    assert names == {"report.html", "report_eval.html", "report_predict.html"}
    record = read_record(str(tmp_path / "regression"))
    assert record["name"] == "regression" and record["bound"] == "host"
    assert record["parameters"] == 8 and record["global_batch"] == 4


@pytest.mark.parametrize("compiled", [False, True])
def test_training_shows_the_floor_plan_and_the_predicted_rate(tmp_path, compiled):
    if compiled:
        build(tmp_path, save_summary_steps=2).compile(dataset)
    build(tmp_path, save_summary_steps=2).train(dataset, max_steps=5)
    found = summaries(tmp_path)
    width, height, image = tf.make_ndarray(found[1]["wafer/floorplan"].tensor)
    assert (width, height) == (b"1000", b"850")
    assert tf.image.decode_png(image).shape == (850, 1000, 3)
    told = found[1]["wafer/floorplan"].metadata.summary_description
    assert "drawn to scale" in told and "| region |" in told
    for step in (1, 2, 4, 5):
        assert found[step]["global_step/sec_predicted_for_CS-2"].simple_value > 100
    assert "global_step/sec" in found[4]


def test_nothing_is_shown_on_the_host(tmp_path):
    build(tmp_path, save_summary_steps=2, use_cs=False).train(dataset, max_steps=2)
    assert not [tag for tags in summaries(tmp_path).values() for tag in tags if "wafer" in tag]
