"""What the console shows of tf.estimator's own lines."""

from __future__ import annotations

import logging

from modelzoo.common.train import console


def test_an_evaluation_shows_its_progress_only_if_it_lasts(monkeypatch):
    now, shown = [0.0], console._NoiseFilter()
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])

    def passes(text, at):
        now[0] = at
        return shown.filter(logging.makeLogRecord({"msg": text}))

    assert not passes("Starting evaluation at 2022-01-01T00:00:00", 100.0)
    late = console.EVERY_S + 100
    found = [passes("Evaluation [1/9]", at) for at in (101, late - 1, late, late + 1)]
    assert found == [False, False, True, False]
    assert passes("Saving checkpoints for 3 into x.", late + 1)
