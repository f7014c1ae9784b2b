"""Tests of modelzoo/common/metrics/scores.py."""

from __future__ import annotations

import json

import pytest

from cerebras_tf.errors import DataError

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.metrics.scores import drop_scores, write_scalars


def events(folder):
    """(step, tag, value) of every scalar in the folder's event files, in order."""
    return [
        (event.step, value.tag, value.simple_value)
        for path in sorted(folder.glob("events.*"))
        for event in tf.train.summary_iterator(str(path))
        for value in event.summary.value
    ]


def test_scores_stand_in_the_events_and_in_the_file(tmp_path):
    folder = tmp_path / "out" / "eval"
    path = write_scalars(folder, 100, {"eval/bleu": 22.5, "eval/exact": 3, "signature": "tok:13a"})
    assert events(folder) == [(100, "eval/bleu", 22.5), (100, "eval/exact", 3.0)]
    wanted = {"100": {"eval/bleu": 22.5, "eval/exact": 3.0, "signature": "tok:13a"}}
    assert json.loads(path.read_text()) == wanted
    assert sorted(item.name.partition(".")[0] for item in folder.iterdir()) == ["events", "scores"]


def test_the_file_keeps_other_steps_and_other_scores(tmp_path):
    write_scalars(tmp_path, 100, {"f1": 1.0, "exact": 2.0})
    write_scalars(tmp_path, 200, {"f1": 3.0})
    path = write_scalars(tmp_path, 100, {"f1": 4.0})
    assert json.loads(path.read_text()) == {"100": {"f1": 4.0, "exact": 2.0}, "200": {"f1": 3.0}}


def test_scores_of_predictions_that_are_gone_are_dropped(tmp_path):
    path = tmp_path / "scores.json"
    assert not drop_scores(tmp_path, 100) and not path.exists()
    write_scalars(tmp_path, 100, {"f1": 1.0})
    write_scalars(tmp_path, 200, {"f1": 3.0})
    assert drop_scores(tmp_path, 100) and not drop_scores(tmp_path, 100)
    assert json.loads(path.read_text()) == {"200": {"f1": 3.0}}


def test_a_file_of_something_else_is_named_and_left(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(DataError, match=r"scores\.json: must hold scores by step"):
        write_scalars(tmp_path, 1, {"f1": 1.0})
    assert path.read_text() == "[1]" and events(tmp_path) == []


def test_a_score_that_is_no_number_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_scalars(tmp_path / "eval", 1, {"f1": None})
    assert not (tmp_path / "eval").exists()
