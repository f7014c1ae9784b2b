"""TensorBoard reads what runs on the wafer write: scalars, histograms and text."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.tf

STEPS, EVERY_N_STEPS = 20, 5
TOKENS_PER_STEP = 4 * 16


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What TensorBoard reads of the folder of a finished run."""
    zoo = CommandLine(tmp_path_factory.mktemp("zoo"))
    zoo.change(("learning_rate: 1e-2", "learning_rate: 1e-2\n    log_hists: True"))
    logs = "runconfig.loggers=[csv]"
    assert zoo("train", "--max_steps", str(STEPS), "--set", logs).exit_code == 0
    assert zoo("eval", "--set", logs).exit_code == 0
    return read(zoo.folder / "out")


def read(folder):
    sizes = {"tensors": 0, "scalars": 0, "histograms": 0}
    return EventAccumulator(str(folder), sizes).Reload()


def scalar(run, tag):
    """Returns step -> value of a scalar."""
    return {event.step: event.value for event in run.Scalars(tag)}


def test_loss_learning_rate_and_the_state_of_the_optimizer_are_shown(run):
    loss = scalar(run, "loss")
    assert list(loss) == sorted(loss) and loss[max(loss)] < loss[min(loss)]
    assert list(scalar(run, "train/lr").values()) == pytest.approx([0.01] * len(loss))
    own = {"train/unclipped_grad_norm", "train/loss_scale", "train/lm_cost"}
    assert own <= set(run.Tags()["scalars"])


def test_charts_show_training_and_evaluation(run):
    evaluation = read(Path(run.path, "eval"))
    for tag in ("loss", "perplexity", "bits_per_byte"):
        assert max(scalar(run, tag)) == max(scalar(evaluation, tag)) == STEPS
    assert scalar(run, "perplexity") == scalar(run, "train/lm_perplexity")
    assert scalar(evaluation, "perplexity") == scalar(evaluation, "eval/lm_perplexity")


def test_scalars_are_also_rows_of_a_csv_file(run):
    for folder, tag in ((Path(run.path), "loss"), (Path(run.path, "eval"), "eval/accuracy")):
        with open(folder / "metrics.csv", newline="") as file:
            found = {int(row["step"]): float(row[tag]) for row in csv.DictReader(file)}
        assert found == pytest.approx(scalar(read(folder), tag), rel=1e-6)


def test_rates_and_the_memory_mark_are_shown(run):
    steps_per_s, tokens_per_s = scalar(run, "global_step/sec"), scalar(run, "tokens_per_sec")
    assert list(steps_per_s) == list(range(EVERY_N_STEPS, STEPS + 1, EVERY_N_STEPS))
    for step, rate in steps_per_s.items():
        assert tokens_per_s[step] == pytest.approx(TOKENS_PER_STEP * rate, rel=1e-5)
    (mark,) = set(scalar(run, "wafer/memory_high_water_bytes").values())
    assert mark > 4 * TOKENS_PER_STEP * 257  # the logits at least


def test_histograms_of_weights_and_the_parameters_are_shown(run):
    kernel = "weight/input_embedding/embedding_weights"
    assert len(run.Histograms(kernel)) >= STEPS // EVERY_N_STEPS
    (tag,) = [tag for tag in run.Tags()["tensors"] if tag.startswith("params")]
    (text,) = run.Tensors(tag)[0].tensor_proto.string_val
    assert b"log_hists: true" in text.lower() and b"num_hidden_layers: 1" in text
