"""Weights on files: the numbers of a run in memory, bit for bit, through every kind of call."""

import re
import shutil

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.bundle.index import read_index
from cerebras_tf.compiler import spilling
from cerebras_tf.errors import CapacityError, ConfigError, StoreError
from cerebras_tf.memoryx import disk_speed

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
    """Folder of a model on files behind its first step."""
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
    """The estimator "model" on files, behind its first step."""
    shutil.copytree(first_step, tmp_path / "model")
    return make("model", files=True)


def variables(estimator):
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    for name, content in wanted.items():
        np.testing.assert_array_equal(found[name], content, err_msg=name)


@pytest.mark.parametrize("clip", [False, True])
def test_training_evaluating_and_predicting_give_the_same_bits(make, clip):
    sides = [make(name, files=name == "files", clip=clip) for name in ("memory", "files")]
    for estimator in sides:
        estimator.train(input_fn, max_steps=3)
        estimator.train(input_fn, max_steps=5)  # goes on from a checkpoint
    wanted, found = sides
    assert_same(variables(found), variables(wanted))
    if not clip:
        return  # only training clips
    assert found.evaluate(input_fn, steps=2) == wanted.evaluate(input_fn, steps=2)
    rows = [[row["y"] for row in e.predict(input_fn, num_samples=20)] for e in sides]
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
    first = tf.train.load_checkpoint(f"{files.model_dir}/model.ckpt-2")
    assert_same({name: first.get_tensor(name) for name in before}, before)


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
        wanted, found = (
            tf.train.load_checkpoint(f"{e.model_dir}/model.ckpt-{step}") for e in (memory, files)
        )
        for name in wanted.get_variable_to_shape_map():
            np.testing.assert_array_equal(found.get_tensor(name), wanted.get_tensor(name))


def test_memory_that_is_too_small_is_refused_before_the_first_step(make):
    with pytest.raises(CapacityError, match="memoryx_ram_gb: must hold the variables"):
        make("model", files=True, memoryx_ram_gb=0.00005).train(input_fn, max_steps=1)


def test_a_disk_that_is_too_small_is_refused_for_training_alone(begun, monkeypatch):
    monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: 1000)
    assert begun.evaluate(input_fn, steps=1)["loss"] > 0  # shares what the checkpoint holds
    with pytest.raises(StoreError, match="memoryx_dir: .* GB of weights and optimizer state must"):
        begun.train(input_fn, max_steps=2)


def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(ConfigError, match="memoryx_ram_gb.*memoryx_dir"):
        CSRunConfig(memoryx_ram_gb=1)
    with pytest.raises(ConfigError, match="memoryx_dir must name"):
        CSRunConfig(memoryx_dir="")
    for size in (0, -1, "2", True, float("nan")):
        with pytest.raises(ConfigError, match="memoryx_ram_gb"):
            CSRunConfig(memoryx_dir="x", memoryx_ram_gb=size)


def test_what_will_be_moved_is_told_and_what_was(make, caplog):
    files = make("model", files=True, save_summary_steps=1)
    with caplog.at_level("INFO", "tensorflow"):
        files.train(input_fn, max_steps=4)
    lines = [record.getMessage() for record in caplog.records]
    assert any("GB written a step; waited" in line for line in lines)
    (planned,) = (found for line in lines if (found := re.match(PLANNED, line)))
    tags = {}
    for path in tf.io.gfile.glob(f"{files.model_dir}/events*"):
        for event in v1.train.summary_iterator(path):
            tags.update({value.tag: value.simple_value for value in event.summary.value})
    read, written = (float(planned[name]) * 1e6 for name in ("read", "written"))
    assert tags["memoryx/bytes_read_per_step"] == pytest.approx(read, rel=0.05)
    assert tags["memoryx/bytes_written_per_step"] == pytest.approx(written, rel=0.05)
    assert read > 0 and written > 0
    assert 0 <= tags["memoryx/stalled_share"] <= 1
