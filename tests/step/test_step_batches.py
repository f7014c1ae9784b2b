"""Several batches of the input make one step: the numbers of a model_fn that accumulates them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.api import accumulates_batches
from cerebras_tf.config import schema
from cerebras_tf.errors import ConfigError, UnsupportedOpError
from cerebras_tf.estimator.estimator import CerebrasEstimator
from cerebras_tf.estimator.run_config import CSRunConfig
from cerebras_tf.frontend.program_source import CompilingSource
from modelzoo.common.config.sections import OptimizerParams
from modelzoo.common.optimizers.training import make_train_op
from tests.estimator.regression import assert_equal, build, dataset, variables_of
from tests.estimator.test_activation_memory import Losses
from tests.step.test_micro_batches import Traffic, moving
from tests.swarmx.ranks import join_job

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
COUNT, ROWS, WORDS, WIDTH = 3, 4, 32, 16
OPTIMIZER = {"optimizer_type": "adamw", "learning_rate": 0.01, "max_gradient_norm": 0.5}


def model(features, labels, mode, params):
    """A language model with dropout, padding of its own in each batch, and clipped gradients."""

    def weight(name, *shape):
        values = np.random.default_rng(len(name)).standard_normal(shape)
        return v1.get_variable(name, initializer=(0.3 * values).astype(np.float32))

    stream = tf.nn.embedding_lookup(weight("table", WORDS, WIDTH), features["ids"])
    for number in range(2):
        inner = tf.nn.gelu(tf.tensordot(stream, weight(f"up_{number}", WIDTH, 64), 1), True)
        inner = tf.nn.dropout(inner, rate=0.1, seed=number)
        stream += tf.tensordot(inner, weight(f"down_{number}", 64, WIDTH), 1)
    logits = tf.tensordot(stream, weight("words", WIDTH, WORDS), 1)
    costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    weights = features["weights"]
    loss = tf.reduce_sum(costs * weights) / tf.reduce_sum(weights)
    count = 1 if accumulates_batches(params["count"]) else params["count"]
    keys = {**OPTIMIZER, **params.get("optimizer", {})}
    section = schema.build(OptimizerParams, keys, schema.Report("test"))
    train_op, (mean,) = make_train_op(loss, section, batches_per_step=count, costs=[loss])
    return tf.estimator.EstimatorSpec(mode, loss=tf.identity(mean, name="cost"), train_op=train_op)


def words(skip=0, count=12):
    """Batches of several lengths."""

    def generate():
        random = np.random.default_rng(5)
        for number in range(count):
            length = 5 + number % 3
            ids = random.integers(0, WORDS, (ROWS, length)).astype(np.int32)
            real = np.arange(length) < random.integers(1, length + 1, (ROWS, 1))
            labels = random.integers(0, WORDS, (ROWS, length)).astype(np.int32)
            yield {"ids": ids, "weights": real.astype(np.float32)}, labels

    rows = {"ids": [ROWS, None], "weights": [ROWS, None]}
    kinds = {"ids": tf.int32, "weights": tf.float32}
    found = tf.data.Dataset.from_generator(generate, (kinds, tf.int32), (rows, [ROWS, None]))
    return found.skip(skip)


class Steps(Losses):
    """Counts the runs of a session, besides losses."""

    def before_run(self, context):
        return tf.estimator.SessionRunArgs("cost:0")


def estimator(folder, in_model_fn=False, use_cs=True, count=COUNT, optimizer=(), **config):
    settings = {"save_summary_steps": None, "log_step_count_steps": None, **config}
    return CerebrasEstimator(
        model,
        str(folder),
        config=CSRunConfig(tf_random_seed=1, **settings),
        params={"count": count, "optimizer": dict(optimizer)},
        use_cs=use_cs,
        batches_per_step=count,
        accumulate_in_model_fn=in_model_fn,
    )


def trained(folder, skip=0, steps=None, **given):
    hook = Steps()
    estimator(folder, **given).train(lambda: words(skip), hooks=[hook], steps=steps)
    return hook.found, variables_of(folder)


def weights_of(variables):
    """Without the sums that a model_fn keeps between the batches of a step."""
    return {name: content for name, content in variables.items() if "accum" not in name}


@pytest.fixture(scope="module")
def in_model_fn(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("graph"), in_model_fn=True)


def test_weights_are_bit_for_bit_those_of_a_model_fn_that_accumulates(tmp_path, in_model_fn):
    losses, variables = trained(tmp_path)
    assert len(losses) == 4  # the hook sees steps
    np.testing.assert_allclose(losses, in_model_fn[0][COUNT - 1 :: COUNT], rtol=2e-7)
    assert not any("accum" in name for name in variables)
    assert_equal(variables, weights_of(in_model_fn[1]), rtol=0)


def test_of_another_optimizer_without_clipping_and_with_a_dynamic_scale_too(tmp_path):
    optimizer = {
        "optimizer_type": "sgd",
        "max_gradient_norm": None,
        "loss_scaling_factor": "dynamic",
    }
    found, expected = (
        trained(tmp_path / str(flag), in_model_fn=flag, optimizer=optimizer)[1]
        for flag in (False, True)
    )
    assert_equal(found, weights_of(expected), rtol=0)


def test_num_csx_is_enough_for_any_model_fn(tmp_path):
    """Four wafers' batches of 4 rows are one wafer's batch of 16."""

    def sixteens():
        return dataset().unbatch().batch(16, drop_remainder=True)

    build(tmp_path / "four", num_csx=4).train(dataset, steps=3)
    build(tmp_path / "one").train(sixteens, steps=3)
    found, expected = (variables_of(tmp_path / name) for name in ("four", "one"))
    assert found["global_step"] == 3
    np.testing.assert_allclose(found["output"], expected["output"], rtol=1e-5)


def test_from_files_the_batches_share_a_pass_over_the_weights(tmp_path, in_model_fn, monkeypatch):
    traffic = Traffic(monkeypatch)
    files = {"memoryx_dir": str(tmp_path / "store"), "memoryx_ram_gb": 0.00006}
    variables = trained(tmp_path / "several", **files)[1]
    several = traffic.steps[-1]
    assert_equal(variables, weights_of(in_model_fn[1]), rtol=0)
    trained(tmp_path / "one", count=1, **files)
    # The sums take memory of the store, so that a little less stays there from step to step.
    assert several[0] <= 1.2 * traffic.steps[-1][0]


def test_a_run_resumes_with_the_bits_of_one_that_was_not_stopped(tmp_path, in_model_fn):
    trained(tmp_path, steps=2)
    _, variables = trained(tmp_path, skip=2 * COUNT)
    assert_equal(variables, weights_of(in_model_fn[1]), rtol=0)


@pytest.mark.parametrize("read", [6, 7])
def test_checkpoints_of_a_model_fn_that_accumulates_resume(tmp_path, in_model_fn, read):
    """Between steps on the wafer; in the middle of a step where model_fn goes on by itself."""
    made = estimator(tmp_path, in_model_fn=True)
    made.train(lambda: words(0, read))
    middle = bool(variables_of(tmp_path)["accum_step_counter"])
    assert middle == (read == 7)
    again = estimator(tmp_path, in_model_fn=middle, restore_partially=True)
    again.train(lambda: words(read))
    assert_equal(weights_of(variables_of(tmp_path)), weights_of(in_model_fn[1]), rtol=0)


def test_host_and_wafer_take_over_from_each_other(tmp_path, in_model_fn):
    """The host runs model_fn's own accumulation."""
    for use_cs, start, end in [(True, 0, 1), (False, 1, 3), (True, 3, 4)]:
        made = estimator(tmp_path, use_cs=use_cs, restore_partially=True)
        made.train(lambda start=start: words(start * COUNT), max_steps=end)
    found, expected = weights_of(variables_of(tmp_path)), weights_of(in_model_fn[1])
    assert found["global_step"] == 4
    assert found["words"].shape == expected["words"].shape


def test_an_incomplete_last_step_is_dropped_and_logged(tmp_path, caplog, in_model_fn):
    with caplog.at_level("INFO", "tensorflow"):
        _, variables = trained(tmp_path / "twelve")
        trained(tmp_path / "short", skip=1)
    dropped = [line for line in caplog.messages if "incomplete last step" in line]
    assert dropped == ["training ends: the data has ended. An incomplete last step is dropped: "
                       "2 of its 3 batches"]  # fmt: skip
    assert variables["global_step"] == 4
    assert variables_of(tmp_path / "short")["global_step"] == 3


def test_compiled_programs_are_found(tmp_path, monkeypatch):
    made = build(tmp_path, batches_per_step=3)
    made.compile(dataset)
    assert len(list((tmp_path / "compiled").glob("program_train_*.zip"))) == 3
    found, run = [], CompilingSource._load

    def load(source, target):
        program = run(source, target)
        found.append((target.kind, program is not None))
        return program

    monkeypatch.setattr(CompilingSource, "_load", load)
    made.train(dataset, steps=2)
    assert sorted(found) == [("first", True), ("last", True), ("middle", True)]
    build(tmp_path / "plain", batches_per_step=3).train(dataset, steps=2)
    assert_equal(variables_of(tmp_path), variables_of(tmp_path / "plain"), rtol=0)


def plain(features, labels, mode, params):
    weight = v1.get_variable("weight", initializer=tf.ones([3, 1]))
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight)[:, 0] - labels))
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def asking_for_two(features, labels, mode, params):
    accumulates_batches(2)
    return plain(features, labels, mode, params)


@pytest.mark.parametrize(
    "given, input_fn, error, named",
    [
        ({"use_cs": False}, dataset, ConfigError, ["batches_per_step", "3", "accumulates_batches"]),
        ({}, lambda: tuple(map(tf.ones, ([4, 3], [4]))), ConfigError, ["input_fn", "tuple", "3"]),
        ({"model": asking_for_two}, dataset, ConfigError, ["batches_per_step", "3", "2"]),
        ({"model": moving}, dataset, UnsupportedOpError, ["kept", "batch"]),
    ],
)
def test_what_cannot_be_accumulated_is_refused(tmp_path, given, input_fn, error, named):
    made = build(tmp_path, **{"model": plain, "batches_per_step": 3, **given})
    with pytest.raises(error) as raised:
        made.train(input_fn, steps=1)
    assert all(fact in str(raised.value) for fact in named)
    assert not list(tmp_path.glob("*.index"))


@pytest.mark.parametrize(
    "given, named",
    [
        *(({"batches_per_step": number}, ["batches_per_step", repr(number)])
          for number in (0, -1, True, 1.5, "2", None)),
        ({"batches_per_step": 2, "micro_batches": 2}, ["micro_batches", "batches_per_step"]),
        ({"num_csx": 2, "micro_batches": 2}, ["micro_batches", "num_csx"]),
    ],
)  # fmt: skip
def test_wrong_numbers_of_batches_are_refused(tmp_path, given, named):
    with pytest.raises(ConfigError) as raised:
        build(tmp_path, **given)
    assert all(fact in str(raised.value) for fact in named)


def test_batches_must_divide_among_processes(tmp_path, monkeypatch):
    join_job(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match="multiple of the 2 processes.*Received: 3"):
        build(tmp_path, batches_per_step=3)


def test_the_host_must_accumulate_as_many_batches_as_the_estimator_counts(tmp_path):
    made = build(tmp_path, model=asking_for_two, batches_per_step=3, use_cs=False)
    with pytest.raises(ConfigError, match="Received: 3 for the estimator, 2 in model_fn"):
        made.train(dataset, steps=1)


def test_sparse_features_and_a_model_without_features_train(tmp_path, caplog):
    def sparse():
        pairs = dataset().take(7)
        return pairs.map(lambda x, y: ({"a": tf.sparse.from_dense(x), "x": x}, y))

    def reading_x(features, labels, mode, params):
        return plain(features["x"], labels, mode, params)

    def latent(features, labels, mode, params):
        return plain(tf.random.normal([4, 3], seed=1), tf.ones([4]), mode, params)

    with caplog.at_level("INFO", "tensorflow"):
        build(tmp_path / "sparse", model=reading_x, batches_per_step=2).train(sparse)
    assert "1 of its 2 batches" in caplog.text
    assert variables_of(tmp_path / "sparse")["global_step"] == 3
    build(tmp_path / "latent", model=latent, batches_per_step=2).train(dataset, steps=2)
    assert variables_of(tmp_path / "latent")["global_step"] == 2


def test_num_csx_on_the_host_is_logged(tmp_path, caplog):
    with caplog.at_level("WARNING", "tensorflow"):
        build(tmp_path, model=plain, num_csx=2, use_cs=False).train(dataset, steps=1)
    assert "num_csx 2: each step trains on one batch" in caplog.text
