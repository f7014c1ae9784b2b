"""Moments that rest in bfloat16: half of the bytes, float32's curve, the same bits whenever."""

import logging
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.bundle.index import read_index
from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels.half_precision import to_bfloat16, to_float32
from modelzoo.common.optimizers.adamw import AdamWOptimizer
from tests.reading import assert_same, variables_of

v1 = tf.compat.v1
WIDTH, BATCH = 24, 16


def optimizers(rate):
    return {
        "adam": v1.train.AdamOptimizer(rate),
        "adamw": AdamWOptimizer(rate, weight_decay_rate=0.01, use_bias_correction=True),
        "momentum": v1.train.MomentumOptimizer(rate, 0.9),
        "rmsprop": v1.train.RMSPropOptimizer(rate, 0.99, 0.9),
        "sgd": v1.train.GradientDescentOptimizer(rate),
    }


def model_fn(features, labels, mode, params):
    init = v1.random_normal_initializer(stddev=0.3, seed=1)
    weights = [v1.get_variable(f"w{i}", (WIDTH, WIDTH), initializer=init) for i in range(2)]
    y = tf.matmul(tf.nn.tanh(tf.matmul(features, weights[0])), weights[1])
    loss = tf.reduce_mean(tf.math.squared_difference(y, labels))
    if mode != "train":
        return tf.estimator.EstimatorSpec(mode, loss=loss, predictions={"y": y})
    optimizer = optimizers(params.get("rate", 3e-3))[params["optimizer"]]
    step = v1.train.get_or_create_global_step()
    gradients = tf.gradients(loss, weights)
    pairs = list(zip(gradients, weights))
    if not params.get("guarded"):
        train_op = optimizer.apply_gradients(pairs, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    finite = tf.math.is_finite(tf.linalg.global_norm(gradients))
    update = tf.cond(finite, lambda: tf.group(optimizer.apply_gradients(pairs)), tf.no_op)
    with tf.control_dependencies([update]):
        train_op = step.assign_add(1, read_value=False)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    random = np.random.default_rng(0)
    x = random.standard_normal((64, WIDTH)).astype(np.float32)
    y = np.tanh(x @ random.standard_normal((WIDTH, WIDTH)).astype(np.float32))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, True).repeat()


@pytest.fixture
def make(tmp_path):
    def make(name, dtype="bfloat16", use_cs=True, files=False, **params):
        config = {"memoryx_moment_dtype": dtype, "tf_random_seed": 1, "save_summary_steps": 50}
        if files:
            config |= {"memoryx_dir": str(tmp_path / "store"), "memoryx_ram_gb": 0.0001}
        params = {"optimizer": "adam", **params}
        config = CSRunConfig(**config)
        return CerebrasEstimator(model_fn, str(tmp_path / name), None, config, params, None, use_cs)

    return make


def contents(estimator):
    return variables_of(estimator.latest_checkpoint())


SLOTS = {
    "adam": {"w0/Adam", "w0/Adam_1", "w1/Adam", "w1/Adam_1"},
    "adamw": {"w0/AdamW", "w0/AdamW_1", "w1/AdamW", "w1/AdamW_1"},
    "momentum": {"w0/Momentum", "w1/Momentum"},
    "rmsprop": {"w0/RMSProp", "w0/RMSProp_1", "w1/RMSProp", "w1/RMSProp_1"},
}


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("optimizer", SLOTS)
def test_moments_alone_are_stored_in_bfloat16(make, optimizer, guarded):
    estimator = make("model", optimizer=optimizer, guarded=guarded)
    estimator.train(input_fn, max_steps=2)
    entries = read_index(estimator.latest_checkpoint())
    assert {n for n, entry in entries.items() if entry.dtype == "bfloat16"} == SLOTS[optimizer]
    first = next(name for name in sorted(SLOTS[optimizer]))
    assert entries[first].size == 2 * WIDTH * WIDTH
    assert np.any(contents(estimator)[first] != 0)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_curve_is_that_of_float32(make, optimizer):
    """A second moment that is rounded to nearest would stall; this one follows."""
    steps, losses, found = 400, {}, {}
    for dtype in (None, "bfloat16"):
        estimator = make(f"of_{dtype}", dtype, optimizer=optimizer)
        estimator.train(input_fn, max_steps=steps)
        losses[dtype] = estimator.evaluate(input_fn, steps=4)["loss"]
        found[dtype] = contents(estimator)
    start = make("start", None, optimizer=optimizer)
    start.train(input_fn, max_steps=1)
    first = start.evaluate(input_fn, steps=4)["loss"]
    assert losses[None] < first / 3
    assert losses["bfloat16"] == pytest.approx(losses[None], rel=0.02)
    slot = "w0/Adam_1" if optimizer == "adam" else "w0/AdamW_1"
    wanted, second = found[None][slot], found["bfloat16"][slot].astype(np.float32)
    assert second.mean() == pytest.approx(wanted.mean(), rel=0.02)
    assert np.median(np.abs(second / wanted - 1)) < 0.1


def test_files_resuming_and_memory_give_the_same_bits(make):
    def one_batch():
        return input_fn().take(1).repeat()

    whole, parts = make("whole"), make("parts", files=True)
    whole.train(one_batch, max_steps=6)
    for steps in (3, 6):
        parts.train(one_batch, max_steps=steps)
    assert_same(contents(parts), contents(whole))


def test_checkpoints_are_read_with_and_without_it(make, caplog):
    halved = make("model")
    halved.train(input_fn, max_steps=3)
    before = contents(halved)
    with caplog.at_level(logging.INFO, "tensorflow"):
        make("model", dtype=None).train(input_fn, max_steps=4)
    (line,) = {text for text in caplog.messages if "to float32" in text}
    assert "4 variables of" in line and "from bfloat16" in line
    assert {array.dtype.name for array in contents(halved).values()} == {"float32", "int64"}
    with caplog.at_level(logging.INFO, "tensorflow"):
        halved.train(input_fn, max_steps=5)
    assert any("4 variables of" in m and "to bfloat16" in m for m in caplog.messages)
    host = make("model", use_cs=False)
    with caplog.at_level(logging.INFO, "tensorflow"):
        host.train(input_fn, max_steps=6)
    assert host.get_variable_value("global_step") == 6
    halved.train(input_fn, max_steps=7)
    assert {array.dtype.name for array in contents(halved).values()} == {
        "float32",
        "int64",
        "bfloat16",
    }
    assert before["w0/Adam"].dtype.name == "bfloat16"


def test_the_host_resumes_exactly_what_the_wafer_saved(make):
    make("model").train(input_fn, max_steps=3)
    saved = contents(make("model"))
    host = make("model", use_cs=False)
    kept = {}

    class Keep(tf.estimator.SessionRunHook):
        def after_create_session(self, session, coord):
            for variable in v1.global_variables():
                kept[variable.op.name] = session.run(variable)

    host.train(input_fn, hooks=[Keep()], max_steps=4)
    for name in SLOTS["adam"]:
        assert kept[name].dtype == np.float32
        np.testing.assert_array_equal(kept[name], saved[name].astype(np.float32))
    assert not list(Path(host.model_dir).glob("*_converted_*"))


def test_fetched_moments_have_the_type_of_the_model(make):
    class Fetch(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            graph = run_context.session.graph
            slots = [v for v in graph.get_collection("variables") if v.op.name == "w0/Adam"]
            self.found = run_context.session.run(slots[0])

    hook = Fetch()
    make("model").train(input_fn, hooks=[hook], max_steps=2)
    assert hook.found.dtype == np.float32
    np.testing.assert_array_equal(hook.found, to_float32(to_bfloat16(hook.found)))


def test_an_optimizer_without_moments_is_refused(make):
    with pytest.raises(ConfigError, match="memoryx_moment_dtype: the optimizer must have moving"):
        make("model", optimizer="sgd").train(input_fn, max_steps=1)
    with pytest.raises(ConfigError, match="memoryx_moment_dtype must be one of bfloat16"):
        CSRunConfig(memoryx_moment_dtype="float16")
