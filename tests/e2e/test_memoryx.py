"""Weights on files: the numbers of a run in memory, bit for bit, through every kind of call."""

import gc
import os
import re
import shutil

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.bundle import links
from cerebras_tf.bundle.index import index_path, read_index
from cerebras_tf.checkpoints import saver
from cerebras_tf.compiler import spilling
from cerebras_tf.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    NumericsError,
    StoreError,
)
from cerebras_tf.estimator import hooks
from cerebras_tf.memoryx import disk_speed, process_folder
from cerebras_tf.swarmx import mpi
from tests.messages import names, raises
from tests.reading import assert_same, scalars_of, variables_of

v1 = tf.compat.v1
WIDTH, INNER, BLOCKS, BATCH = 32, 128, 3, 16
PLANNED = r"a step reads (?P<read>[\d.]+) MB and writes (?P<written>[\d.]+) MB: .* the bottleneck"
# Two of three blocks' weights and state at once.
RAM_GB = 0.0002
SETTINGS = {"tf_random_seed": 1, "checkpoint_save_graph_def": False}


def model_fn(features, labels, mode, params):
    """Residual blocks, clipped by the global norm; `params["tracks"]` adds an integer variable."""
    stream = features
    for number in range(BLOCKS):
        init = v1.random_normal_initializer(stddev=0.1, seed=number)
        up = v1.get_variable(f"block_{number}/up", (WIDTH, INNER), initializer=init)
        down = v1.get_variable(f"block_{number}/down", (INNER, WIDTH), initializer=init)
        stream += tf.matmul(tf.nn.gelu(tf.matmul(stream, up)), down)
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, predictions={"y": stream})
    loss = tf.reduce_mean(tf.math.squared_difference(stream, labels))
    if mode == "eval":
        return tf.estimator.EstimatorSpec(mode, loss=loss)
    step = v1.train.get_or_create_global_step()
    optimizer = v1.train.AdamOptimizer(1e-3)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    if params["clip"]:
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
    train_op = optimizer.apply_gradients(zip(gradients, variables), step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    x = np.random.default_rng(0).standard_normal((4 * BATCH, WIDTH)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, ::-1])).batch(BATCH, True).repeat()


@pytest.fixture(autouse=True)
def stages_all(monkeypatch):
    monkeypatch.setattr(spilling, "_LEAST_BYTES", 0)


@pytest.fixture
def make(tmp_path):
    """Makes estimators that keep weights in memory, or with `files=True` on files."""

    def make(name, files, clip=True, use_cs=True, **config):
        folder = {"memoryx_dir": str(tmp_path / "store"), "memoryx_ram_gb": RAM_GB}
        config = CSRunConfig(**{**SETTINGS, **(folder if files else {}), **config})
        params = {"clip": clip}
        return CerebrasEstimator(model_fn, str(tmp_path / name), None, config, params, None, use_cs)

    yield make
    assert not list((tmp_path / "store").glob("*")), "files of a store are left"


@pytest.fixture(scope="module")
def first_step(tmp_path_factory):
    """Folder of a model on files after its first step."""
    folder = tmp_path_factory.mktemp("first")
    files = {"memoryx_dir": str(folder / "store"), "memoryx_ram_gb": RAM_GB}
    config, params = CSRunConfig(**SETTINGS, **files), {"clip": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "_LEAST_BYTES", 0)
        made = CerebrasEstimator(model_fn, str(folder / "model"), None, config, params, None, True)
        made.train(input_fn, max_steps=1)
    return folder / "model"


@pytest.fixture
def begun(make, first_step, tmp_path):
    """The estimator "model" on files, after its first step."""
    shutil.copytree(first_step, tmp_path / "model")
    return make("model", files=True)


def variables(estimator):
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def test_training_without_clipping_gives_the_same_bits(make):
    sides = [make(name, files=name == "files", clip=False) for name in ("memory", "files")]
    assert_same(*(variables(in_two_calls(estimator)) for estimator in sides))


def test_training_evaluating_and_predicting_give_the_same_bits(make, in_memory):
    found, wanted = in_two_calls(make("files", files=True)), in_memory
    assert_same(variables(found), variables(wanted))
    assert found.evaluate(input_fn, steps=2) == wanted.evaluate(input_fn, steps=2)
    rows = [[row["y"] for row in e.predict(input_fn, num_samples=20)] for e in (found, wanted)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert_same(variables(found), variables(wanted))


def test_checkpoints_go_between_files_memory_and_host(make):
    files = make("model", files=True)
    files.train(input_fn, max_steps=2)
    entries = read_index(files.latest_checkpoint())
    assert all(entries[name].offset % 4096 == 0 for name in entries if "block" in name)
    before = variables(files)
    host = make("model", files=False, use_cs=False)
    host.train(input_fn, max_steps=3)  # reads what links hold, writes a checkpoint of TensorFlow's
    make("model", files=False).train(input_fn, max_steps=4)
    files.train(input_fn, max_steps=5)
    assert files.get_variable_value("global_step") == 5
    assert_same(variables_of(f"{files.model_dir}/model.ckpt-2"), before)


def test_evaluations_within_training_read_its_variables(make):
    results = []
    for name in ("memory", "files"):
        estimator = make(name, files=name == "files", save_checkpoints_steps=2)
        train = tf.estimator.TrainSpec(input_fn, max_steps=4)
        evaluation = tf.estimator.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=0)
        results.append(estimator.train_and_evaluate(train, evaluation)[0])
        results.append(variables(estimator))
    assert results[2] == results[0]
    assert_same(results[3], results[1])


def test_every_checkpoint_keeps_its_own_step(make):
    """Contents are shared by links; going on must not change what was saved."""
    files, memory = (make(n, n == "files", save_checkpoints_steps=1) for n in ("files", "memory"))
    for estimator in (files, memory):
        estimator.train(input_fn, max_steps=4)
    for step in range(5):
        assert_same(*(variables_of(f"{e.model_dir}/model.ckpt-{step}") for e in (files, memory)))


def test_a_disk_that_is_too_small_is_refused_for_training_alone(begun, monkeypatch):
    monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: 1000)
    assert begun.evaluate(input_fn, steps=1)["loss"] > 0  # shares what the checkpoint holds
    with raises(StoreError, "memoryx_dir", " kB"):
        begun.train(input_fn, max_steps=2)


def test_bytes_are_logged_as_planned_and_as_moved(make, caplog):
    files = make("model", files=True, save_summary_steps=1)
    with caplog.at_level("INFO", "tensorflow"):
        files.train(input_fn, max_steps=4)
    lines = [record.getMessage() for record in caplog.records]
    assert any("GB written per step; waited" in line for line in lines)
    (planned,) = (found for line in lines if (found := re.match(PLANNED, line)))
    tags = {tag: value for (_, tag), value in scalars_of(files.model_dir).items()}
    read, written = (float(planned[name]) * 1e6 for name in ("read", "written"))
    assert tags["memoryx/bytes_read_per_step"] == pytest.approx(read, rel=0.05)
    assert tags["memoryx/bytes_written_per_step"] == pytest.approx(written, rel=0.05)
    assert read > 0 and written > 0
    assert 0 <= tags["memoryx/stalled_share"] <= 1


def parted_model_fn(features, labels, mode, params):
    """A linear layer in two unequal parts, by Adam."""
    with v1.variable_scope("split", partitioner=v1.fixed_size_partitioner(2)):
        init = v1.random_normal_initializer(seed=1)
        kernel = v1.get_variable("kernel", (WIDTH + 1, WIDTH), initializer=init)
    kernel = tf.convert_to_tensor(kernel)
    loss = tf.reduce_mean(tf.math.squared_difference(features @ kernel[1:], labels))
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def saving_model_fn(features, labels, mode, params):
    """The model above with a Saver of the user's."""
    spec = model_fn(features, labels, mode, params)
    if mode != "train":
        return spec
    return spec._replace(scaffold=v1.train.Scaffold(saver=v1.train.Saver()))


def uneven_input_fn():
    """Batches of 16, 5, 16, 5, ... rows."""
    x = np.random.default_rng(0).standard_normal((BATCH + 5, WIDTH)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, ::-1])).batch(BATCH).repeat()


def kept_stores(monkeypatch):
    """The stores of all training that begins from now on, the last after the others."""
    stores = []
    init = saver.WaferSaver.__init__

    def kept(self, store, *arguments, **keywords):
        stores.append(store)
        init(self, store, *arguments, **keywords)

    monkeypatch.setattr(saver.WaferSaver, "__init__", kept)
    return stores


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory):
    """The model in memory, trained to step 2 and on to step 4."""
    folder, config = str(tmp_path_factory.mktemp("memory")), CSRunConfig(**SETTINGS)
    return in_two_calls(
        CerebrasEstimator(model_fn, folder, None, config, {"clip": True}, None, True)
    )


def in_two_calls(estimator, given=input_fn):
    for last in (2, 4):
        estimator.train(given, max_steps=last)
    return estimator


def trained(make, given, model_fn, files, **config):
    """An estimator of a model, trained in two calls."""
    made = make("files" if files else "memory", files, **config)
    return in_two_calls(
        CerebrasEstimator(model_fn, made.model_dir, None, made.config, {"clip": True}, None, True),
        given,
    )


def test_parts_of_variables_are_shared_by_links(make, caplog):
    with caplog.at_level("WARNING", "tensorflow"):
        memory = trained(make, input_fn, parted_model_fn, files=False)
        files = trained(make, input_fn, parted_model_fn, files=True, memoryx_ram_gb=4e-5)
    assert_same(found := variables(files), variables(memory))
    assert found["split/kernel/Adam"].shape == (WIDTH + 1, WIDTH)
    data = tf.io.gfile.glob(f"{files.latest_checkpoint()}.data*")
    assert not any("were copied" in record.getMessage() for record in caplog.records)
    assert len(data) == 2, "one of the store, one of the session"


def test_a_users_saver_writes_what_is_on_files(make, in_memory):
    files = trained(make, input_fn, saving_model_fn, files=True)
    assert_same(variables(files), variables(in_memory))
    evaluated = [side.evaluate(input_fn, steps=1) for side in (in_memory, files)]
    assert evaluated[0] == evaluated[1]


def test_batches_of_other_sizes_share_one_store(make):
    memory, files = (
        trained(make, uneven_input_fn, model_fn, files=where) for where in (False, True)
    )
    assert_same(variables(files), variables(memory))


class DeletingHook(tf.estimator.SessionRunHook):
    """Deletes the files of the store after the third step, as a user might."""

    def __init__(self, folder):
        self.folder, self.steps = folder, 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        if self.steps == 3:
            found = [os.path.join(at, n) for at, _, names in os.walk(self.folder) for n in names]
            for path in found:
                if path.endswith(".bin"):
                    os.unlink(path)


def test_files_deleted_during_a_run_are_named_when_it_saves(make, in_memory):
    files = make("model", files=True, save_checkpoints_steps=2)
    with raises(CheckpointError, "bin was deleted", "ckpt-2"):
        files.train(input_fn, hooks=[DeletingHook(files.config.memoryx_dir)], max_steps=4)
    files.train(input_fn, max_steps=4)
    assert_same(variables(files), variables(in_memory))


def test_a_save_reads_nothing(make, monkeypatch):
    read = []

    def watched(function):
        def call(self, *arguments, **keywords):
            store = self._wafer_store if isinstance(self, saver.WaferSaver) else stores[-1]
            before = store.io_stats.bytes_read
            try:
                return function(self, *arguments, **keywords)
            finally:
                read.append(store.io_stats.bytes_read - before)

        return call

    stores = kept_stores(monkeypatch)
    for owner, name in ((saver.WaferSaver, "save"), (hooks.FiniteStateListener, "before_save")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    files = make("model", files=True, save_checkpoints_steps=1)
    files.train(input_fn, max_steps=2)
    files.train(input_fn, max_steps=4)
    assert stores[-1].io_stats.bytes_read > 0
    assert len(read) >= 10 and not any(read)


@pytest.mark.parametrize("files", [False, True])
def test_weights_that_are_not_finite_are_not_saved(make, files):
    def diverging(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        step = v1.train.get_or_create_global_step()
        train_op = v1.train.GradientDescentOptimizer(3e38).minimize(1e9 * spec.loss, step)
        return spec._replace(train_op=train_op)

    made = make("model", files=files, save_checkpoints_steps=1)
    estimator = CerebrasEstimator(
        diverging, made.model_dir, None, made.config, {"clip": False}, None, True
    )
    with raises(NumericsError, "step 1", f"in {2 * BLOCKS} variables"):
        estimator.train(input_fn, max_steps=3)


def test_an_older_checkpoint_is_evaluated_within_training(make):
    class Evaluate(tf.estimator.CheckpointSaverListener):
        def __init__(self, estimator):
            self._estimator, self.losses = estimator, []

        def after_save(self, session, step):
            for at in (step - 2, step) if step else ():
                path = f"{self._estimator.model_dir}/model.ckpt-{at}"
                found = self._estimator.evaluate(input_fn, steps=1, checkpoint_path=path)
                self.losses.append((step, at, found["loss"]))

    files = make("files", files=True, save_checkpoints_steps=2)
    listener = Evaluate(files)
    files.train(input_fn, max_steps=4, saving_listeners=[listener])
    memory = make("memory", files=False, save_checkpoints_steps=2)
    memory.train(input_fn, max_steps=4)
    losses = {
        at: memory.evaluate(input_fn, 1, checkpoint_path=f"{memory.model_dir}/model.ckpt-{at}")
        for at in (0, 2, 4)
    }
    assert len(listener.losses) == 4
    assert all(found == losses[at]["loss"] for _, at, found in listener.losses)
    assert len({found["loss"] for found in losses.values()}) == 3
    assert_same(variables(files), variables(memory))


def test_a_prediction_that_is_left_leaves_nothing(begun, tmp_path):
    rows = begun.predict(input_fn)
    wanted = next(rows)["y"]
    assert list((tmp_path / "store").glob("*"))
    rows.close()
    assert not list((tmp_path / "store").glob("*"))
    rows = begun.predict(input_fn)
    np.testing.assert_array_equal(next(rows)["y"], wanted)
    del rows
    gc.collect()
    assert not list((tmp_path / "store").glob("*"))


def test_a_prediction_waits_for_no_other_wafer(begun, make, monkeypatch):
    monkeypatch.setattr(mpi, "swarm", lambda: pytest.fail("of several wafers one may predict"))
    rows = make("model", files=True, memoryx_ram_gb=None).predict(input_fn)
    assert len(list(zip(range(2), rows))) == 2
    rows.close()


def test_compiling_alone_leaves_nothing(make, tmp_path, caplog):
    files = make("model", files=True)
    with caplog.at_level("INFO", "tensorflow"):
        files.compile(input_fn, validate_only=True)
        files.compile(input_fn)
    assert sum("a step reads" in record.getMessage() for record in caplog.records) == 2
    assert not (tmp_path / "store").exists()


def test_compiling_alone_needs_the_memory_that_training_needs(make):
    """That of the variables that are held together, not that of the largest."""
    raised = []
    for start in (
        lambda files: files.compile(input_fn, validate_only=True),
        lambda files: files.train(input_fn, max_steps=1),
    ):
        with pytest.raises(CapacityError, match="memoryx_ram_gb") as error:
            start(make("model", files=True, memoryx_ram_gb=2e-5))
        raised.append(str(error.value))
    assert raised[0] == raised[1]


@pytest.mark.parametrize("fault", ["below a file", "read-only", "full"])
def test_compiling_alone_logs_a_disk_that_training_would_refuse(
    make, tmp_path, caplog, monkeypatch, fault
):
    (tmp_path / "taken").touch()
    folder = str(tmp_path / ("taken/below" if fault == "below a file" else "new"))
    if fault == "read-only":  # the tests' user may write anywhere
        monkeypatch.setattr(process_folder.os, "access", lambda path, mode: False)
    if fault == "full":
        monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: 1000)
    with caplog.at_level("INFO", "tensorflow"):
        made = make("model", files=True, memoryx_dir=folder)
        made.compile(input_fn, validate_only=True)
        (line,) = [text for text in caplog.messages if "does not fit on this computer" in text]
        assert names(line, "optimizer state" if fault == "full" else f"memoryx_dir {folder}")
        assert not (tmp_path / "new").exists()
        caplog.clear()
        made.compile(input_fn, mode="eval", validate_only=True)  # which writes nothing there
    assert "does not fit" not in caplog.text


def test_a_model_that_is_refused_leaves_nothing(make, tmp_path):
    def refused(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        table = v1.get_local_variable("table", initializer=tf.zeros([4]))
        init = v1.assign(v1.trainable_variables()[0], tf.zeros([WIDTH, 128])).op
        del table
        return spec._replace(scaffold=v1.train.Scaffold(local_init_op=init))

    files = make("model", files=True)
    config = files.config
    given = CerebrasEstimator(refused, files.model_dir, None, config, {"clip": True}, None, True)
    with raises(ConfigError, "Scaffold.local_init_op"):
        given.train(input_fn, max_steps=1)
    assert not list((tmp_path / "store").glob("*"))


def test_pipeline_mode_is_refused(make, monkeypatch):
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipeline")
    with raises(ConfigError, "memoryx_dir", "python-ws"):
        make("model", files=True).train(input_fn, max_steps=1)


def test_checkpoints_are_copied_where_there_are_no_links(make, in_memory, monkeypatch, caplog):
    def refuse(source, target):
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(links.os, "link", refuse)
    with caplog.at_level("WARNING", "tensorflow"):
        files = in_two_calls(make("files", files=True))
    assert_same(variables(files), variables(in_memory))
    assert caplog.text.count("GB were copied") == 2, "once a call of train"


def flip(path, at):
    """Flips a bit of a byte of a file."""
    with open(path, "rb+") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def check_flips(files, parts):
    """Flips a byte of a checkpoint at a time: each is found, and named.

    Args:
        files: the estimator that wrote it.
        parts: of names of variables, one of which a byte is flipped of; None: of the index.
    """
    prefix = files.latest_checkpoint()
    kept = variables(files)
    entries = {n: e for n, e in read_index(prefix).items() if n.startswith("block_")}
    random = np.random.default_rng(len(parts))
    for part in parts:
        if part is None:
            path = index_path(prefix)
            at = int(random.integers(os.path.getsize(path)))
            named = "model.ckpt-1"
        else:
            names = sorted(name for name in entries if part in name)
            name = names[int(random.integers(len(names)))]
            entry = entries[name]
            path, at = entry.path, entry.offset + int(random.integers(entry.size))
            named = rf"{path}: .* {name} .* checksum"
        flip(path, at)
        with pytest.raises(CheckpointError, match=named):
            files.train(input_fn, max_steps=2)
        flip(path, at)
    files.train(input_fn, max_steps=2)
    assert_same(variables_of(prefix), kept)


def test_flipped_bytes_of_a_checkpoint_are_found_and_named(begun):
    check_flips(begun, ["/up", "/down/Adam", None])


@pytest.mark.slow
def test_fifty_flipped_bytes_are_found_and_named(begun):
    check_flips(begun, [*("/" for _ in range(4)), None] * 10)
