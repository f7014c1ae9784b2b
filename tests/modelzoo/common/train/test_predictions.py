"""Predictions of some batches: the rest of the data is told, and no model sees it."""

from __future__ import annotations

import json
import logging
import types

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.common.train import predictions


class Estimator:
    """Predicts of every number that it is that number, and counts batches."""

    batches = 0

    def predict(self, input_fn, **given):
        with tf.Graph().as_default(), tf.Session() as session:
            batch = tf.data.make_one_shot_iterator(input_fn({})).get_next()
            while True:
                try:
                    found = session.run(batch)
                except tf.errors.OutOfRangeError:
                    return
                self.batches += 1
                yield from ({"number": number} for number in found["number"])


@pytest.mark.parametrize(("rows", "steps", "others"), [(11, 2, True), (8, 2, False), (6, 9, False)])
def test_only_batches_that_are_predicted_are_computed(rows, steps, others, monkeypatch):
    told, estimator = [], Estimator()
    monkeypatch.setattr(predictions, "log_left_out", told.append)
    params = types.SimpleNamespace(
        runconfig=types.SimpleNamespace(predict_steps=steps), predict_input=None
    )

    def input_fn(params):
        return tf.data.Dataset.from_tensor_slices({"number": np.arange(rows)}).batch(4)

    inputs = types.SimpleNamespace(predict=input_fn)
    found = list(predictions.predicted_rows(estimator, inputs, params, "it", True))
    assert [row["number"] for row in found] == list(range(min(rows, 4 * steps)))
    assert estimator.batches == min(steps, -(-rows // 4)) and bool(told) == others


def test_no_row_at_all_is_refused():
    params = types.SimpleNamespace(
        runconfig=types.SimpleNamespace(predict_steps=2),
        predict_input=types.SimpleNamespace(skip_steps=3),
    )
    inputs = types.SimpleNamespace(predict=lambda params: tf.data.Dataset.range(0).batch(4))
    with pytest.raises(DataError, match="must have rows to predict. Received: none after"):
        list(predictions.predicted_rows(Estimator(), inputs, params, "it", True))


def test_a_step_has_the_scores_of_its_last_predictions(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "tensorflow")
    monkeypatch.setattr(predictions, "predicted_step", lambda checkpoint_path: 100)
    predictions.write_scores(
        tmp_path, "ckpt", {"f1": 2.0, "em": 1.0}, shown=lambda name: "f" in name
    )
    assert "step 100: f1 2.00" in caplog.text and "em" not in caplog.text
    caplog.clear()
    for told in (True, False):
        predictions.write_scores(tmp_path, "ckpt", {})
        assert json.loads((tmp_path / "scores.json").read_text()) == {}
        assert ("removed step 100's scores" in caplog.text) is told
        caplog.clear()
