"""What a run tells of itself, also where it was killed or its events are damaged."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.errors import DataError  # noqa: E402
from modelzoo.commands.configs import config_path  # noqa: E402
from modelzoo.common.params import load_params, save_params  # noqa: E402
from modelzoo.common.scaling.runs import read_run  # noqa: E402


@pytest.fixture
def run(tmp_path):
    """A folder of two steps, and its file of events."""
    save_params(load_params(config_path("gpt3_tiny")), tmp_path)
    events = tmp_path / "events.out.tfevents.1"
    with tf.io.TFRecordWriter(str(events)) as writer:
        for step, loss in ((10, 4.0), (20, 3.0)):
            value = tf.compat.v1.Summary.Value(tag="loss", simple_value=loss)
            event = tf.compat.v1.Event(step=step, summary=tf.compat.v1.Summary(value=[value]))
            writer.write(event.SerializeToString())
    return tmp_path, events


def test_a_killed_run_counts_by_its_whole_events(run):
    folder, events = run
    whole = read_run(folder)
    assert whole.loss == 3.0
    events.write_bytes(events.read_bytes()[:-3])
    cut = read_run(folder)
    assert cut.loss == 4.0 and cut.flops == whole.flops / 2


def test_events_that_are_damaged_are_named(run):
    folder, events = run
    events.write_bytes(b"no events at all, and long enough for one")
    with pytest.raises(DataError, match="must hold TensorBoard's events. Received: corrupted"):
        read_run(folder)
