"""run.py: modes on the host, resuming, and bad calls."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf import CerebrasEstimator
from cerebras_tf.checkpoints.writer import write_checkpoint
from cerebras_tf.errors import CerebrasError, CheckpointError, ConfigError, DataError, StoreError
from cerebras_tf.estimator.hooks import GracefulStopHook
from cerebras_tf.memoryx import disk_speed
from modelzoo.common.convert.tensorflow_checkpoint import write_tensorflow
from modelzoo.common.model_dir.checkpoint_files import remove_checkpoint
from modelzoo.common.train import predictions, run
from modelzoo.common.train.arguments import parse_arguments
from tests.messages import names, raises
from tests.reading import assert_same, variables_of

YAML = """\
model_name: gpt3
train_input:
    data_processor: GptTextDataProcessor
    data_dir: texts
    eval_fraction: 0.0
    max_sequence_length: 8
    batch_size: 2
eval_input:
    data_dir: texts
    data_processor: GptTextDataProcessor
predict_input: {}
model:
    hidden_size: 8
    num_hidden_layers: 1
    num_heads: 2
    filter_size: 16
optimizer:
    optimizer_type: sgd
    learning_rate: 1e-2
runconfig:
    max_steps: 6
    eval_steps: 2
    save_checkpoints_steps: 3
    save_summary_steps: 2
    tf_random_seed: 1
"""
ADAMW = YAML.replace("sgd", "adamw")  # with variables of its own


@pytest.fixture
def call(tmp_path):
    """Returns a function that runs one command line on the host."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("to be or not to be, that is the question. " * 20)
    path = tmp_path / "params_gpt_x.yaml"
    path.write_text(YAML)

    def run_main(mode, *flags, out="out", device="/cpu:0"):
        folder = str(tmp_path / out)
        where = ["--device", device] if device else []
        run.main(["-m", mode, "-p", str(path), "-o", folder, *where, *flags])
        return folder

    run_main.path = path
    return run_main


@pytest.mark.parametrize(
    "device", [pytest.param("/cpu:0", marks=pytest.mark.slow), None], ids=["host", "wafer"]
)
def test_wafers_may_come_and_go_between_two_runs(call, tmp_path, device):
    call("train", "--max_steps", "2", device=device)
    shutil.copytree(tmp_path / "out", tmp_path / "shifted")
    found = variables_of(call("train", "--max_steps", "4", "--num_csx", "2", device=device))
    assert found.get("accum_step_counter") == (None if device is None else 0)
    # Two batches were read before, as many as one step of two wafers reads.
    call.path.write_text(YAML.replace("batch_size: 2", "batch_size: 2\n    skip_steps: 1"))
    rest = ["--max_steps", "4", "--num_csx", "2"]
    expected = variables_of(call("train", *rest, out="shifted", device=device))
    assert_same(found, expected)
    call.path.write_text(YAML)
    assert "accum_step_counter" not in variables_of(call("train", device=device))
    position = json.loads((tmp_path / "out" / "data_position.json").read_text())
    assert [entry[:3] for entry in position] == [[0, 0, 1], [2, 2, 2], [4, 6, 1]]


def test_a_step_stopped_between_its_batches_resumes_with_the_next(call, monkeypatch, tmp_path):
    whole = variables_of(call("train", "--num_csx", "2", out="whole"))
    calls = []
    asked = GracefulStopHook.after_run

    def stop_after_three(hook, context, run_values):
        calls.append(1)
        if len(calls) == 3:
            context.request_stop()
        asked(hook, context, run_values)

    monkeypatch.setattr(GracefulStopHook, "after_run", stop_after_three)
    parts = variables_of(call("train", "--num_csx", "2", out="parts"))
    assert (parts["global_step"], parts["accum_step_counter"]) == (1, 1)
    assert parts["accum_step_costs"][-1] == 1
    older = tmp_path / "older"  # written before costs were added up
    older.mkdir()
    kept = {name: x for name, x in parts.items() if name not in ("global_step", "accum_step_costs")}
    write_tensorflow(older, "model.ckpt-1", iter(kept.items()), 1)
    with raises(CheckpointError, "1 of 2 batches after step 1", "--max_steps 2"):
        call("train", out="parts")
    shutil.copytree(tmp_path / "parts", tmp_path / "wafer")
    for out in ("parts", "older"):
        parts = variables_of(call("train", "--num_csx", "2", out=out))
        assert_same(parts, whole)
    parts = variables_of(call("train", "--num_csx", "2", out="wafer", device=None))
    assert parts.keys() >= whole.keys()  # a run that begins there accumulates as before
    for name in whole.keys() - {name for name in whole if "k_projection/bias" in name}:
        value = whole[name]  # the gradients of those biases are rounding errors
        np.testing.assert_allclose(parts[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


SMALLER = (
    ("num_hidden_layers: 2", "num_hidden_layers: 1", ""),  # on the wafer
    ("optimizer_type: adamw", "optimizer_type: sgd", "/cpu:0"),
)


def test_training_on_with_fewer_variables_is_refused_or_asked_for(call, tmp_path, caplog):
    text = ADAMW.replace("num_hidden_layers: 1", "num_hidden_layers: 2")
    call.path.write_text(text)
    before = variables_of(call("train", out="before", device=None))
    for number, (old, new, device) in enumerate(SMALLER):
        out = tmp_path / f"out_{number}"
        shutil.copytree(tmp_path / "before", out)
        files = {path: path.read_bytes() for path in out.glob("*") if path.is_file()}
        call.path.write_text(text.replace(old, new))
        with caplog.at_level("INFO", logger="tensorflow"), pytest.raises(CheckpointError) as error:
            call("train", "--max_steps", "9", out=out.name, device=device)
        assert f"-{'model' if 'layers' in old else 'optimizer'}.{old}" in caplog.text
        assert {path: path.read_bytes() for path in files} == files
        call.path.write_text(call.path.read_text() + "    restore_partially: true\n")
        after = variables_of(call("train", "--max_steps", "9", out=out.name, device=device))
        assert after["global_step"] == 9
        assert after.keys() < before.keys()
        lost = sorted(before.keys() - after.keys())
        names(error.value, len(lost), ", ".join(lost[:12]), "runconfig.restore_partially")


def test_a_changed_parameter_is_shown_once_and_then_saved(call, caplog):
    with caplog.at_level("INFO", logger="tensorflow"):
        call("train")
        assert "earlier runs" not in caplog.text
        call("train", "--max_steps", "7")
        assert "\n  -runconfig.max_steps: 6\n  +runconfig.max_steps: 7" in caplog.text
        caplog.clear()
        call("train", "--max_steps", "7")
        call("eval")
        assert "earlier runs" not in caplog.text


def test_the_address_of_no_wafer_is_refused_also_where_nothing_is_left(call):
    call("train", device=None)
    for address in ("127.0.0.1:1", "a:b"):
        with raises(CerebrasError, "cs_ip", address):
            call("train", "--cs_ip", address, device=None)


def test_a_stopped_run_evaluates_at_the_steps_of_one_never_stopped(call, monkeypatch):
    """Stopped at a checkpoint of its own, between two, and in evaluations."""
    call.path.write_text(YAML.replace("steps: 6", "steps: 9") + "    keep_best_checkpoint: {}\n")
    folder = Path(call("train_and_eval", out="whole"))
    whole = json.loads((folder / "eval" / "evaluations.json").read_text())
    assert list(whole) == ["3", "6", "9"]
    after_run, evaluate = GracefulStopHook.after_run, CerebrasEstimator.evaluate
    steps, evaluated = [], []

    def step(hook, context, run_values):
        steps.append(1)
        if len(steps) in (3, 5):  # after step 4 of the second run, and step 6 of the third
            hook.signal_number = signal.SIGINT
        after_run(hook, context, run_values)

    def stopped(self, *given, **keys):
        path = keys["checkpoint_path"] if keys else given[-1]
        evaluated.append(int(path.rpartition("-")[2]))
        if evaluated[-1] in (3, 9) and evaluated.count(evaluated[-1]) == 1:
            raise KeyboardInterrupt
        return evaluate(self, *given, **keys)

    monkeypatch.setattr(GracefulStopHook, "after_run", step)
    monkeypatch.setattr(CerebrasEstimator, "evaluate", stopped)
    for wanted in ([3], [3, 3, 4], [3, 3, 4, 6], [3, 3, 4, 6, 9]):
        with pytest.raises(KeyboardInterrupt):
            call("train_and_eval")
        assert evaluated == wanted
    for _ in range(2):
        folder = Path(call("train_and_eval"))
        assert (len(steps), evaluated) == (7, [3, 3, 4, 6, 9, 9])
    assert {int(path.stem.rpartition("-")[2]) for path in folder.glob("*.index")} == {0, 3, 4, 6, 9}
    assert json.loads((folder / "eval" / "evaluations.json").read_text()) == whole
    assert (folder / "best" / "model.ckpt-9.index").exists()


def test_folder_in_use_is_refused(call, tmp_path):
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".lock", "w") as file:
        file.write("123\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with raises(ConfigError, "process 123"):
            call("train")


@pytest.mark.parametrize("option", ["-o", "--checkpoint_path", "--resume_from"])
def test_a_folder_where_tensorflow_finds_no_checkpoint_is_refused_at_once(call, tmp_path, option):
    name = {"-o": "model_dir"}.get(option, option.strip("-"))
    before = sorted(tmp_path.rglob("*"))
    with raises(ConfigError, f"{name}:", "runs[1]"):
        call("train", option, str(tmp_path / "runs[1]"))
    assert sorted(tmp_path.rglob("*")) == before


def test_mode_without_its_section_or_steps_is_refused(call):
    text = YAML.replace("    max_steps: 6\n", "")
    call.path.write_text(text)
    with raises(ConfigError, "runconfig.max_steps", "--steps"):
        call("train")
    call.path.write_text(text[: text.index("eval_input:")] + text[text.index("model:") :])
    with raises(ConfigError, "mode eval", "eval_input"):
        call("eval")


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["--steps", "9"], 12),
        (["--set", "runconfig.steps=9"], 12),
        (["--max_steps", "9"], 9),
        (["--steps", "9", "--max_steps", "8"], 8),
        ([], 5),
    ],
)
def test_the_end_that_the_command_line_sets_replaces_the_one_of_the_file(tmp_path, words, end):
    path = tmp_path / "params.yaml"
    path.write_text(YAML + "    steps: 2\n")
    args = parse_arguments(["-m", "train", "-p", str(path), "-o", str(tmp_path / "out"), *words])
    assert run.last_step(run.read_params(args).runconfig, 3) == end


ABSENT = "data_dir: absent"
MISTAKES = {
    "no data": (("data_dir: texts", ABSENT), "train", ()),
    "too few data": (("batch_size: 2", "batch_size: 900"), "train", ()),
    "no evaluation data": (("data_dir: texts\n    data_p", f"{ABSENT}\n    data_p"), "train", ()),
    "no batch": (("predict_input", "    skip_steps: 999\npredict_input"), "train_and_eval", ()),
    "metric": (("    max_steps", "    early_stopping: {metric: a}\n    max_steps"), "", ()),
    "other checkpoint": (("hidden_size: 8", "hidden_size: 4"), "train", ("--checkpoint_path",)),
    "other resume": (("hidden_size: 8", "hidden_size: 4"), "train", ("--resume_from",)),
    "other evaluation": (("hidden_size: 8", "hidden_size: 4"), "eval", ("--checkpoint_path",)),
    "no checkpoint": (("", ""), "eval", ()),
    "none": (("", ""), "train_and_eval", ()),
    "memory": (("    max_steps", "    wafer_memory_gb: 1.0e-9\n    max_steps"), "train", None),
}


def test_keys_without_effect_of_all_kinds_are_in_one_line(tmp_path, caplog):
    path = tmp_path / "params_x.yaml"
    text = f"{YAML}    num_wgt_servers: 2\n".replace("model_name: gpt3\n", "")
    path.write_text(text.replace("model:\n", "model:\n    vocab_size: 257\n"))
    words = ["-m", "train", "-p", str(path), "--model", "gpt3"]
    assert run.read_params(parse_arguments(words)).model_name == "gpt3"
    (line,) = caplog.messages
    assert names(line, str(path), "model.vocab_size", "runconfig.num_wgt_servers")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_validation_raises_the_error_of_the_run_and_leaves_nothing(call, tmp_path, mistake):
    (old, new), mode, options = MISTAKES[mistake]
    if options:
        options = (*options, call("train", "--max_steps", "1", out="other"))
    assert old in YAML
    call.path.write_text(YAML.replace(old, new, 1 if old else 0))
    place, found = (None if options is None else "/cpu:0"), []
    for flags in (["--validate_only"], []):
        try:
            call(mode or "train_and_eval", *(options or ()), *flags, device=place)
            found.append(None)
        except CerebrasError as error:
            found.append((type(error), str(error)))
        assert (tmp_path / "out").exists() is (not flags and mode != "eval")
    assert found[0] == found[1] and (found[0] is None) is (
        mistake in ("none", "no evaluation data")
    )


def test_validation_reads_the_logs_that_the_run_continues(call, tmp_path):
    call.path.write_text(YAML.replace("    max_steps", "    loggers: [csv]\n    max_steps", 1))
    call("train", "--max_steps", "1")
    for name, mode, more in (("", "train", ("--max_steps", "2")), ("eval", "eval", ())):
        path = tmp_path / "out" / name / "metrics.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\xff\n")
        for flags in (["--validate_only"], []):
            with raises(ConfigError, path, "loggers"):
                call(mode, *more, *flags)
        path.unlink()


def test_validation_refuses_a_full_disk(call, monkeypatch):
    monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: 1000)
    with raises(StoreError, "model_dir", "checkpoint"):
        call("train", "--validate_only")


def test_evaluation_of_nothing_is_refused(call):
    call("train", "--max_steps", "3")
    end = "data_processor: GptTextDataProcessor\npredict"
    call.path.write_text(YAML.replace(end, end.replace("\n", "\n    skip_steps: 1000\n")))
    for mode in ("eval", "train_and_eval"):
        with raises(DataError, "eval_input", "skip_steps"):
            call(mode)


def test_data_that_ends_before_the_last_step_is_logged(call, caplog):
    caplog.set_level("WARNING", logger="tensorflow")
    text = YAML.replace("    batch_size: 2\n", "    batch_size: 2\n    repeat: False\n")
    call.path.write_text(text.replace("max_steps: 6", "max_steps: 1000"))
    call("train")
    names(caplog.text, "train_input", "step 52 of 1000")


def test_random_weights_next_to_a_checkpoint_are_logged(call, caplog, tmp_path):
    caplog.set_level("WARNING", logger="tensorflow")
    folder = call("train", "--max_steps", "1")
    call("train", "--max_steps", "2")
    assert "random weights" not in caplog.text
    own, other = f"{folder}/params.yaml", str(tmp_path / "other")
    run.main(["-m", "train", "-p", own, "-o", other, "--device", "/cpu:0", "--max_steps", "1"])
    names(caplog.text, "random weights", "--checkpoint_path", folder)


def test_a_profile_needs_training_on_the_wafer(call):
    for mode, device, place in (("train", "/cpu:0", "/cpu:0"), ("eval", None, "mode eval")):
        with raises(ConfigError, "profile", 3, place):
            call(mode, "--profile", "3", device=device)


def test_a_section_sparsity_prunes_what_training_starts_from(call):
    call.path.write_text(YAML + "sparsity:\n    mask_type: checkerboard\n")
    found = variables_of(call("train_and_eval", device=None))
    kernels = [name for name in found if name.endswith("kernel")]
    assert kernels and all((found[name] == 0).mean() == 0.5 for name in kernels)
    tables = [name for name in found if name.endswith("embedding_weights")]
    assert tables and all(found[name].any(axis=1).all() for name in tables)


def write_step(folder, step):
    prefix = str(folder / f"model.ckpt-{step}")
    write_checkpoint(prefix, [{"global_step": np.int64(step)}])
    tf.train.update_checkpoint_state(str(folder), prefix)


def test_a_checkpoint_that_training_removes_is_not_predicted_with(tmp_path, caplog, monkeypatch):
    steps = []

    def predict(estimator, inputs, params, path, use_cs):
        steps.append(predictions.predicted_step(path))
        if len(steps) == 1:  # what training beside it does
            write_step(tmp_path, 4)
            remove_checkpoint(path)
            assert predictions.predicted_step(path) == 3
            raise CheckpointError("no such file")
        if len(steps) == 2:
            raise DataError("of another cause")

    write_step(tmp_path, 3)
    package = SimpleNamespace(predict=predict)
    monkeypatch.setattr(run.registry, "find_prediction", lambda name: package)
    runconfig = SimpleNamespace(model_dir=str(tmp_path), checkpoint_path=None)
    params = SimpleNamespace(model_name="it", runconfig=runconfig)
    with pytest.raises(DataError, match="of another cause"):
        run.predict(None, SimpleNamespace(INPUTS=None), params, True)
    assert steps == [3, 4]
    assert "model.ckpt-3 was removed during the run" in caplog.text


@pytest.mark.parametrize("mode, wanted", [("eval", [3, 4]), ("eval_all", [1, 2, 3])])
def test_checkpoints_that_training_removes_are_not_evaluated(tmp_path, caplog, mode, wanted):
    class Estimator:
        steps = []

        def evaluate(self, input_fn, steps, hooks, path, use_cs):
            self.steps.append(int(path[-1]))
            if len(self.steps) == 1:  # what training beside it does
                write_step(tmp_path, 4)
                remove_checkpoint(path)
                raise CheckpointError("no such file")
            return {"global_step": self.steps[-1], "loss": 1.0}

    for step in (1, 2, 3):
        write_step(tmp_path, step)
    runconfig = SimpleNamespace(model_dir=str(tmp_path), checkpoint_path=None, eval_steps=None)
    data = SimpleNamespace(INPUTS=SimpleNamespace(eval=None))
    run.evaluate(Estimator(), data, mode, runconfig, True)
    assert Estimator.steps == wanted
    assert f"model.ckpt-{wanted[0]} was removed during the run" in caplog.text


@pytest.mark.parametrize("mode", ["train", "train_and_eval"])
def test_samples_are_logged_and_written_and_change_nothing(call, tmp_path, caplog, mode):
    plain = variables_of(call(mode, out="plain", device=None))
    caplog.clear()
    sample = ("--sample_every", "3", "--sample_prompt", "to be")
    assert_same(variables_of(call(mode, *sample, device=None)), plain)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("sample at step")]
    assert [names(line, step, "\nto be") for line, step in zip(lines, ("3", "6"))] == [True, True]
    texts = {
        event.step: value.tensor.string_val[0].decode()
        for path in (tmp_path / "out").glob("events*")
        for event in tf.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "sample"
    }
    assert sorted(texts) == [3, 6]
    for step, line in zip((3, 6), lines):  # as code in Markdown
        shown = texts[step].replace("\n    ", "\n").removeprefix("    ")
        assert line.partition("\n")[2].split() == shown.split()


def test_samples_are_generated_from_checkpoints_of_language_models(call):
    with raises(ConfigError, "runconfig.sample_every", "save_checkpoints_steps", 3, 4):
        call("train", "--sample_every", "4")
    with raises(ConfigError, "runconfig.sample_prompt", "sample_every"):
        call("train", "--sample_prompt", "x")


def test_the_params_file_of_a_model_folder_evaluates_its_own_checkpoint(call, tmp_path, caplog):
    start = call("train", "--max_steps", "3", out="start")
    folder = call("train", "--checkpoint_path", start, "--max_steps", "2")
    call.path = tmp_path / "out" / "params.yaml"
    for more, evaluated in (((), folder), (("--checkpoint_path", start), start)):
        caplog.clear()
        run.main(["-m", "eval", "-p", str(call.path), "-o", folder, *more])
        lines = [r.getMessage() for r in caplog.records]
        assert any(line.startswith(f"evaluating {evaluated}/model.ckpt-") for line in lines)
