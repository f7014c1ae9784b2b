"""Checkpoints are TensorFlow's, are complete or absent, and are refused if they do not fit."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management  # what TF's saver deletes with
from tensorflow.python.lib.io import file_io  # what it writes its list with

from cerebras_tf.checkpoints import saver
from cerebras_tf.checkpoints.reader import first_line
from cerebras_tf.checkpoints.writer import write_checkpoint
from cerebras_tf.errors import CheckpointError
from cerebras_tf.swarmx.heartbeats import checkpoint_file
from tests.estimator import regression
from tests.estimator.regression import assert_equal, build, dataset, variables_of
from tests.messages import names, raises
from tests.swarmx.ranks import join_job

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def test_a_checkpoint_of_several_shards_is_read_by_tensorflow(tmp_path):
    shards = [{"a": np.arange(6.0).reshape(2, 3)}, {"b/c": np.array(7), "b/d": np.ones(2)}]
    write_checkpoint(str(tmp_path / "model-3"), iter(shards))
    reader = tf.train.load_checkpoint(str(tmp_path / "model-3"))
    assert set(reader.get_variable_to_shape_map()) == {"a", "b/c", "b/d"}
    np.testing.assert_array_equal(reader.get_tensor("a"), shards[0]["a"])
    assert reader.get_tensor("b/c") == 7
    assert sorted(os.listdir(tmp_path))[-1] == "model-3.index"


def test_small_shards_hold_the_same_checkpoint(tmp_path, monkeypatch):
    build(tmp_path / "whole").train(dataset, max_steps=2)
    monkeypatch.setattr(saver, "SHARD_BYTES", 1)
    build(tmp_path / "cut").train(dataset, max_steps=2)
    assert_equal(variables_of(tmp_path / "cut"), variables_of(tmp_path / "whole"), 0)


def test_host_and_wafer_write_the_same_names_types_and_files(tmp_path):
    listings = []
    for use_cs in (False, True):
        folder = tmp_path / str(use_cs)
        build(folder, save_checkpoints_steps=2).train(dataset, max_steps=4, use_cs=use_cs)
        reader = tf.train.load_checkpoint(str(folder))
        types = reader.get_variable_to_dtype_map()
        files = {p.name for p in folder.iterdir() if "model.ckpt" in p.name}
        listings.append((types, reader.get_variable_to_shape_map(), files))
    assert listings[0][:2] == listings[1][:2]
    kinds = [{name.split(".data-")[0] for name in files} for *_, files in listings]
    assert kinds[0] == kinds[1]


def test_old_checkpoints_of_this_and_earlier_runs_are_deleted(tmp_path):
    for last in (3, 6):
        made = build(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=2)
        made.train(dataset, max_steps=last)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert [Path(p).name for p in state.all_model_checkpoint_paths] == [
        "model.ckpt-5",
        "model.ckpt-6",
    ]
    assert {p.name.split(".")[1] for p in tmp_path.glob("model.ckpt-*")} == {"ckpt-5", "ckpt-6"}


def test_a_run_killed_while_it_deletes_a_checkpoint_leaves_none_of_its_files(tmp_path, monkeypatch):
    folder, killed = tmp_path / "whole", tmp_path / "killed"
    remove = checkpoint_management.remove_checkpoint

    def interrupted(prefix, *rest):
        for ending in ("meta", "index"):  # which go first
            Path(f"{prefix}.{ending}").unlink()
        shutil.copytree(folder, killed)
        monkeypatch.undo()
        remove(prefix, *rest)

    monkeypatch.setattr(checkpoint_management, "remove_checkpoint", interrupted)
    options = {"save_checkpoints_steps": 1, "keep_checkpoint_max": 2}
    build(folder, **options).train(dataset, max_steps=3)
    assert list(killed.glob("model.ckpt-0.data-*"))
    build(killed, **options).train(dataset, max_steps=3)
    for left in (folder, killed):
        assert {p.name.split(".")[1] for p in left.glob("model.ckpt-*")} == {"ckpt-2", "ckpt-3"}


@pytest.mark.parametrize("kept", [1, 5])
def test_each_checkpoint_has_its_graph_which_is_made_once(tmp_path, kept, monkeypatch):
    made = []
    export = saver.WaferSaver.export_meta_graph

    def counted(self, *args, **kwargs):
        made.append(args)
        return export(self, *args, **kwargs)

    monkeypatch.setattr(saver.WaferSaver, "export_meta_graph", counted)
    estimator = build(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=kept)
    estimator.train(dataset, max_steps=4)
    assert len(made) == 1
    state = tf.train.get_checkpoint_state(str(tmp_path))
    for path in state.all_model_checkpoint_paths:
        with tf.Graph().as_default():
            v1.train.import_meta_graph(f"{path}.meta")
            names = {variable.name for variable in v1.global_variables()}
        assert "layer/kernel:0" in names


def test_a_truncated_checkpoint_is_refused(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=1)
    (content,) = tmp_path.glob("model.ckpt-1.data-*")
    content.write_bytes(content.read_bytes()[:10])
    for method in (made.evaluate, lambda input_fn: made.train(input_fn, max_steps=2)):
        with raises(CheckpointError, "model.ckpt-1"):
            method(dataset)


def test_a_damaged_index_is_refused(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=1)
    index = tmp_path / "model.ckpt-1.index"
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2])
    with raises(CheckpointError, "model.ckpt-1", "ckpt-0"):  # the one before it
        made.train(dataset, max_steps=2)
    with raises(CheckpointError, "model.ckpt-7", "prefix"):
        made.evaluate(dataset, steps=1, checkpoint_path=str(tmp_path / "model.ckpt-7"))


@pytest.mark.parametrize("use_cs", [True, False])
def test_a_checkpoint_that_the_list_does_not_name_is_logged(tmp_path, caplog, use_cs):
    made = build(tmp_path, use_cs=use_cs)
    made.train(dataset, max_steps=2)
    assert "does not name it" not in caplog.text
    (tmp_path / "checkpoint").unlink()
    for call in (
        lambda: made.evaluate(dataset, steps=1),
        lambda: build(tmp_path, use_cs=use_cs).train(dataset, max_steps=1),
    ):
        caplog.clear()
        with caplog.at_level("WARNING", "tensorflow"):
            call()
        names(caplog.text, "model.ckpt-2 is complete", "checkpoint does not name it")


@pytest.mark.parametrize("use_cs", [True, False])
def test_a_damaged_list_of_checkpoints_is_refused(tmp_path, use_cs):
    made = build(tmp_path, use_cs=use_cs)
    made.train(dataset, max_steps=2)
    listed = tmp_path / "checkpoint"
    content = listed.read_bytes()
    for damage in (b"model_checkroint_path", b"model_checkp\xefint_path", b""):
        listed.write_bytes(damage and content.replace(b"model_checkpoint_path", damage))
        for call in (
            lambda: made.train(dataset, max_steps=4),
            lambda: made.evaluate(dataset, steps=1),
            lambda: next(made.predict(dataset)),
        ):
            with raises(CheckpointError, listed, 'model_checkpoint_path: "model.ckpt-2"'):
                call()
    assert made.evaluate(dataset, 1, checkpoint_path=str(tmp_path / "model.ckpt-2"))
    original = tmp_path / "original"
    build(original, use_cs=use_cs).train(dataset, max_steps=1)
    for path in (f"{original}/model.ckpt-1", "original/model.ckpt-1", "../model.ckpt-1"):
        listed.write_text(f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "{path}"')
        with raises(CheckpointError, listed, os.path.basename(path)):
            build(tmp_path, use_cs=use_cs).train(dataset, max_steps=4)
    assert len(list(original.glob("model.ckpt-1.*"))) > 1
    listed.write_text('model_checkpoint_path: "model.ckpt-2"')
    assert made.evaluate(dataset, steps=1)["global_step"] == 2


def test_a_failed_first_checkpoint_releases_the_variables(tmp_path, monkeypatch):
    kept, released = [], []

    def shards(self, rest):
        try:
            yield rest
        finally:
            released.append(True)

    def write(prefix, shards):
        kept.append(shards)
        next(shards)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(saver, "write_checkpoint", write)
    monkeypatch.setattr(saver.WaferSaver, "_shards", shards)
    with raises(CheckpointError, "No space left on device", "no earlier checkpoint"):
        build(tmp_path).train(dataset, max_steps=2)
    assert kept and released


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_named_and_the_last_checkpoint_remains(tmp_path, monkeypatch):
    made = build(tmp_path, save_checkpoints_steps=2)
    made.train(dataset, max_steps=2)
    before = variables_of(tmp_path)
    monkeypatch.setattr(saver, "write_checkpoint", write_to_full_disk)
    with raises(CheckpointError, "No space left", "ckpt-2 is untouched"):
        made.train(dataset, max_steps=4)
    monkeypatch.undo()
    assert_equal(variables_of(tmp_path), before, 0)
    made.train(dataset, max_steps=4)
    assert variables_of(tmp_path)["global_step"] == 4


@pytest.mark.parametrize("use_cs", [True, False])
def test_a_list_of_checkpoints_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch, use_cs):
    write = file_io.write_string_to_file

    def full(path, content):
        write(path, content[:1])
        if os.path.basename(path).startswith("checkpoint.tmp"):
            raise tf.errors.ResourceExhaustedError(None, None, f"{path}; No space left on device")

    made = build(tmp_path, save_checkpoints_steps=2, use_cs=use_cs)
    made.train(dataset, max_steps=2)
    monkeypatch.setattr(file_io, "write_string_to_file", full)
    with raises(CheckpointError, "No space left", "ckpt-2 is untouched"):
        made.train(dataset, max_steps=4)
    assert not list(tmp_path.glob("*.tmp*"))
    monkeypatch.undo()
    (tmp_path / f"checkpoint.tmp{'0a' * 16}").touch()  # of a killed process
    (tmp_path / "checkpoint.tmp").touch()  # of the user
    made.train(dataset, max_steps=4)
    assert [path.name for path in tmp_path.glob("*.tmp*")] == ["checkpoint.tmp"]


def test_the_first_line_of_an_error_is_its_cause_not_where_its_graph_was_built():
    message = (
        "Graph execution error:\n\nDetected at node 'SaveV2' defined at (most recent call last):\n"
        "    File \"train.py\", line 6, in <module>\nNode: 'SaveV2'\n"
        "model.ckpt-3.data; No space left on device\n\t [[{{node SaveV2}}]]"
    )
    error = tf.errors.ResourceExhaustedError(None, None, message)
    assert first_line(error) == "model.ckpt-3.data; No space left on device"
    assert first_line(OSError()) == "OSError"


def write_to_full_disk(prefix, shards):
    for _ in shards:
        with open("/dev/full", "wb", buffering=0) as device:
            device.write(b"0")


# Trains, and kills itself while it writes a shard of the checkpoint of step 4.
KILLED = """
import os, signal, sys
from cerebras_tf.checkpoints import saver, writer
from tests.estimator.regression import build, dataset
saver.SHARD_BYTES = 1
save_shard = writer._save_shard
def deadly(path, shard):
    if "ckpt-4" in path and path.endswith("part-00002"):
        os.kill(os.getpid(), signal.SIGKILL)
    save_shard(path, shard)
writer._save_shard = deadly
build(sys.argv[1], save_checkpoints_steps=2).train(dataset, max_steps=6)
"""


def test_a_run_killed_while_saving_resumes_exactly(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed")]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert variables_of(tmp_path / "killed")["global_step"] == 2
    made = build(tmp_path / "killed", save_checkpoints_steps=2)
    made.train(lambda: dataset(start=2), max_steps=6)
    build(tmp_path / "pure").train(dataset, max_steps=6)
    assert_equal(variables_of(tmp_path / "killed"), variables_of(tmp_path / "pure"), 0)
    assert not list((tmp_path / "killed").glob("*_writing_*"))


@pytest.mark.parametrize("use_cs", [False, True])
def test_an_old_checkpoint_goes_even_if_killed_when_the_list_has_changed(
    tmp_path, monkeypatch, use_cs
):
    made = build(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=2)

    def killed(saver, meta_graph_suffix="meta"):
        if saver._checkpoints_to_be_deleted:
            shutil.copytree(tmp_path, tmp_path / "killed")
            raise KeyboardInterrupt

    monkeypatch.setattr(v1.train.Saver, "_MaybeDeleteOldCheckpoints", killed)
    with pytest.raises(KeyboardInterrupt):
        made.train(dataset, max_steps=3, use_cs=use_cs)
    monkeypatch.undo()
    assert list((tmp_path / "killed").glob("model.ckpt-0.index"))
    build(tmp_path / "killed").train(dataset, max_steps=2, use_cs=use_cs)  # nothing left to do
    left = {path.name.partition(".")[2][:6] for path in (tmp_path / "killed").glob("model*")}
    assert left == {"ckpt-1", "ckpt-2"}
    assert not list(tmp_path.rglob("*_removing_*"))


def deeper(features, labels, mode, params):
    """A layer more, trained by Adam."""
    spec = regression.model_fn(features, labels, tf.estimator.ModeKeys.PREDICT, params)
    more = v1.get_variable("more", initializer=np.ones(3, np.float32))
    loss = tf.reduce_mean(tf.square(spec.predictions["scores"] - labels)) + tf.reduce_sum(more**2)
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, spec.predictions, loss, train_op)


def files_of(folder):
    """Name, time and content of a folder's checkpoints."""
    return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.glob("model.ckpt-*")}


@pytest.mark.parametrize("use_cs", [False, True])
def test_a_checkpoint_that_holds_more_than_the_model_is_refused_for_training(tmp_path, use_cs):
    build(tmp_path, model=deeper).train(dataset, max_steps=3)
    before = files_of(tmp_path)
    # `more` and its two slots, two more slots of each weight, Adam's two powers.
    facts = ("9 unexpected", "beta1_power, beta2_power, layer/kernel/Adam,")
    with raises(CheckpointError, *facts, "restore_partially"):
        build(tmp_path, use_cs=use_cs).train(dataset, max_steps=6)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("use_cs", [False, True])
def test_training_continues_without_the_early_stopping_hook(tmp_path, use_cs):
    made, alone = build(tmp_path / "stops", use_cs=use_cs), build(tmp_path / "alone", use_cs=use_cs)
    hook = tf.estimator.experimental.make_early_stopping_hook(
        made, lambda: True, run_every_secs=None, run_every_steps=2
    )
    made.train(dataset, hooks=[hook], steps=5)
    flag = "signal_early_stopping/STOP"
    stopped = variables_of(tmp_path / "stops")
    assert stopped.pop(flag) and stopped["global_step"] < 5
    made.train(lambda: dataset(int(stopped["global_step"])), max_steps=6)
    alone.train(dataset, max_steps=6)
    assert_equal(variables_of(tmp_path / "stops"), variables_of(tmp_path / "alone"), 1e-6)


def test_evaluation_and_prediction_may_read_less_than_a_checkpoint_holds(tmp_path):
    def with_more(features, labels, mode, params):
        v1.get_variable("more", initializer=np.ones(3, np.float32))
        return regression.model_fn(features, labels, mode, params)

    build(tmp_path, model=with_more).train(dataset, max_steps=3)
    made = build(tmp_path)
    host = made.evaluate(regression.ragged_dataset, use_cs=False)
    wafer = made.evaluate(regression.ragged_dataset)
    assert wafer["loss"] == pytest.approx(host["loss"], rel=1e-5)
    assert len(list(made.predict(regression.ragged_dataset))) == 48


def test_training_continues_if_reporting_to_the_launcher_fails(tmp_path, monkeypatch, caplog):
    join_job(monkeypatch, tmp_path, wafers=1)
    checkpoint_file(str(tmp_path)).mkdir()
    with caplog.at_level("WARNING", logger="tensorflow"):
        build(tmp_path / "run").train(dataset, max_steps=2)
    assert variables_of(tmp_path / "run")["global_step"] == 2
    logged = [line for line in map(str, caplog.messages) if "--requeue" in line]
    names(logged[-1], "model.ckpt-2 is complete")


def test_restore_partially_loads_what_fits_and_leaves_the_checkpoint_unchanged(tmp_path, caplog):
    build(tmp_path, model=deeper).train(dataset, max_steps=3)
    before, old = files_of(tmp_path), variables_of(tmp_path)
    made = build(tmp_path, restore_partially=True, save_checkpoints_steps=1)
    with caplog.at_level("WARNING", logger="tensorflow"):
        made.train(lambda: dataset(3), max_steps=4)
    after = files_of(tmp_path)
    assert {name: after[name] for name in before} == before
    found = variables_of(tmp_path)
    assert "more" not in found and "layer/kernel/Momentum" in found
    names(
        caplog.text,
        "9 variables that are not in the model",
        "no values for 2 variables",
        "layer/kernel/Momentum",
    )
    # One step of gradient descent from the old weights: Momentum starts at zero.
    assert not np.allclose(found["layer/kernel"], old["layer/kernel"])
    np.testing.assert_allclose(
        found["layer/kernel"], old["layer/kernel"] - 0.1 * found["layer/kernel/Momentum"], rtol=1e-5
    )


@pytest.mark.parametrize("use_cs", [False, True])
def test_a_restored_checkpoint_is_not_written_again_and_listeners_are_called(tmp_path, use_cs):
    class Listener(tf.estimator.CheckpointSaverListener):
        def __init__(self):
            self.steps = []

        def after_save(self, session, global_step_value):
            self.steps.append(int(global_step_value))

    build(tmp_path, save_checkpoints_steps=2).train(dataset, max_steps=4)
    before, listener = files_of(tmp_path), Listener()
    made = build(tmp_path, save_checkpoints_steps=2, use_cs=use_cs)
    made.train(dataset, max_steps=7, saving_listeners=[listener])
    assert listener.steps == [4, 6, 7]
    after = files_of(tmp_path)
    assert {name: after[name] for name in before} == before
    paths = tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
    assert [path.rpartition("-")[2] for path in paths] == ["0", "2", "4", "6", "7"]


@pytest.mark.parametrize(
    ("use_cs", "options"), [(True, {}), (False, {}), (True, {"restore_partially": True})]
)
def test_other_shapes_are_an_invalid_argument_and_all_are_named(tmp_path, use_cs, options):
    build(tmp_path).train(dataset, max_steps=1)
    before = sorted(os.listdir(tmp_path))
    facts = ("4 of another shape", "layer/kernel [3, 2] instead of [3, 5]", "a mismatch between")
    with raises(tf.errors.InvalidArgumentError, *facts):
        build(tmp_path, {"width": 5}, **options).train(dataset, max_steps=2, use_cs=use_cs)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("use_cs", [False, True])
def test_missing_variables_are_not_found(tmp_path, use_cs):
    build(tmp_path).train(dataset, max_steps=1)
    with raises(tf.errors.NotFoundError, *(["9 missing", "layer/kernel/Adam"] if use_cs else [])):
        build(tmp_path, model=deeper).evaluate(dataset, steps=1, use_cs=use_cs)
