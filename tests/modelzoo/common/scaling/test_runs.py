"""Loss and FLOP of a run by its files, also where it was killed or its events are damaged."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.errors import DataError
from modelzoo.commands.configs import config_path
from modelzoo.common.config.params import load_params, save_params
from modelzoo.common.scaling.runs import read_run
from tests.messages import raises


def write_events(folder, shown):
    """Writes a file of events into a folder: pairs of a step and of values by their tags."""
    folder.mkdir(exist_ok=True)
    events = folder / "events.out.tfevents.1"
    with tf.io.TFRecordWriter(str(events)) as writer:
        for step, values in shown:
            summary = tf.compat.v1.Summary()
            for tag, number in values.items():
                summary.value.add(tag=tag, simple_value=number)
            writer.write(tf.compat.v1.Event(step=step, summary=summary).SerializeToString())
    return events


def write_params(folder, **settings):
    tree = {f"{part}.{key}": v for part, keys in settings.items() for key, v in keys.items()}
    save_params(load_params(config_path("gpt3_tiny"), tree), folder)


@pytest.fixture
def run(tmp_path):
    """A folder of two steps, and its file of events."""
    write_params(tmp_path)
    return tmp_path, write_events(tmp_path, ((10, {"loss": 4.0}), (20, {"loss": 3.0})))


def test_the_last_evaluation_counts_by_its_perplexity(run):
    folder, _ = run
    trained = read_run(folder)
    values = {"loss": 123.0, "eval/lm_perplexity": 20.0}
    write_events(folder / "eval", ((10, {**values, "eval/lm_perplexity": 40.0}), (20, values)))
    found = read_run(folder)
    assert found.loss == pytest.approx(math.log(20.0)) and found.evaluated
    assert found.flops == trained.flops and not trained.evaluated
    write_events(folder / "eval", ((20, {"eval/lm_perplexity": math.inf}),))
    with raises(DataError, "loss", "inf"):
        read_run(folder)


def test_a_run_that_was_not_trained_is_refused(tmp_path):
    write_params(tmp_path)
    (tmp_path / "eval").mkdir()
    write_events(tmp_path / "eval", ((0, {"eval/lm_perplexity": 250.0}),))
    with raises(DataError, "step 0"):
        read_run(tmp_path)


def test_a_loss_that_is_none_of_a_token_is_refused(run):
    folder, _ = run
    write_params(folder, model={"loss_weight": 0.5})
    assert read_run(folder).loss == 6.0
    write_params(folder, model={"loss_scaling": "batch_size"})
    with raises(DataError, "model.loss_scaling"):
        read_run(folder)
    write_events(folder, ((20, {"loss": 384.0, "train/lm_cost": 2.5}),))
    assert read_run(folder).loss == 2.5


def test_steps_that_had_other_batches_count_as_they_were(run):
    folder, _ = run
    before = read_run(folder).flops
    (folder / "data_position.json").write_text("[[0, 0, 1], [10, 10, 4]]")
    write_params(folder, optimizer={"grad_accum_steps": 4})
    assert read_run(folder).flops == pytest.approx(before * (10 + 4 * 10) / 20)


def test_batches_of_another_size_count_as_they_were(run):
    folder, _ = run
    before = read_run(folder).flops
    batch, length = 24, 128  # of the params file
    (folder / "data_position.json").write_text(
        f"[[0, 0, 1, {batch}, {length}], [10, 10, 1, {3 * batch}, {length}]]"
    )
    assert read_run(folder).flops == pytest.approx(before * (10 + 3 * 10) / 20)
    (folder / "data_position.json").write_text(f"[[10, 10, 1, {batch}, {2 * length}]]")
    assert read_run(folder).flops > 2 * before  # attention to more tokens
    (folder / "data_position.json").write_text(f"[[10, 30, 1, {batch}, {length}]]")
    assert read_run(folder).flops == pytest.approx(before * 40 / 20)


def test_a_killed_run_counts_by_its_whole_events(run):
    folder, events = run
    whole = read_run(folder)
    assert whole.loss == 3.0
    events.write_bytes(events.read_bytes()[:-3])
    cut = read_run(folder)
    assert cut.loss == 4.0 and cut.flops == whole.flops / 2
