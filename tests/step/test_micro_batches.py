"""A batch in equal parts, one after another: the step of the whole, in the memory of one part."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf import cross_wafer_sum
from cerebras_tf.errors import ConfigError, DataError, UnsupportedOpError
from cerebras_tf.passes.split_micro_batches import COUNTS
from cerebras_tf.runtime.session import Session
from tests.estimator.regression import (
    assert_equal,
    build,
    dataset,
    model_fn,
    models_built,
    ragged_dataset,
    variables_of,
)
from tests.estimator.test_activation_memory import Losses
from tests.messages import names

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
ROWS, TOKENS, WIDTH, WORDS = 8, 6, 16, 32
RTOL = 1e-6


def language(features, labels, mode, params):
    """Words by their places, a mean over those that count, gradients clipped by their norm."""
    random = np.random.default_rng(0)

    def weight(name, *shape):
        return v1.get_variable(
            name, initializer=0.3 * random.standard_normal(shape).astype(np.float32)
        )

    table = weight("table", WORDS, WIDTH)
    stream = tf.nn.embedding_lookup(table, features["ids"])
    for number in range(3):
        inner = tf.nn.gelu(tf.tensordot(stream, weight(f"up_{number}", WIDTH, 4 * WIDTH), 1), True)
        stream += tf.tensordot(inner, weight(f"down_{number}", 4 * WIDTH, WIDTH), 1)
    logits = tf.tensordot(stream, weight("words", WIDTH, WORDS), 1)
    costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    count = cross_wafer_sum(tf.reduce_sum(features["weights"]))
    parts = cross_wafer_sum(tf.ones([]))
    loss = tf.reduce_sum(costs * features["weights"]) * parts / count
    loss = tf.identity(loss, name="cost")
    variables = v1.trainable_variables()
    grads = [tf.convert_to_tensor(grad) for grad in tf.gradients(loss, variables)]
    grads, norm = tf.clip_by_global_norm(grads, 0.05)
    tf.identity(norm, name="norm")
    step = v1.train.get_global_step()
    train_op = v1.train.AdamOptimizer(0.01).apply_gradients(zip(grads, variables), step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def words():
    random = np.random.default_rng(5)
    count = 12 * ROWS
    ids = random.integers(0, WORDS, (count, TOKENS)).astype(np.int32)
    lengths = random.integers(1, TOKENS + 1, (count, 1))
    weights = (np.arange(TOKENS) < lengths).astype(np.float32)
    labels = random.integers(0, WORDS, (count, TOKENS)).astype(np.int32)
    rows = tf.data.Dataset.from_tensor_slices(({"ids": ids, "weights": weights}, labels))
    return rows.batch(ROWS, drop_remainder=True)


class Fetched(Losses):
    """Keeps the loss and the norm of every step."""

    def before_run(self, context):
        return tf.estimator.SessionRunArgs(["cost:0", "norm:0"])


def trained(folder, micro_batches=1, hook=Fetched, **config):
    hook = hook()
    with models_built() as models:
        made = build(folder, model=language, micro_batches=micro_batches, **config)
        made.train(words, hooks=[hook], steps=6)
    return np.array(hook.found), variables_of(folder), models[-1].step


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("count", [2, 8])
def test_losses_norms_and_variables_are_those_of_the_whole_batch(tmp_path, whole, count):
    found, variables, step = trained(tmp_path, count)
    np.testing.assert_allclose(found, whole[0], rtol=RTOL)
    assert {name.endswith("sum_over_micro_batches") for name in variables} == {False}
    extra = {name for name in variables if name not in whole[1]}
    assert extra <= {"cerebras_tf/random_step"}
    kept = {name: content for name, content in variables.items() if name not in extra}
    assert_equal(kept, whole[1], rtol=1e-5)
    assert step.program.arena_bytes < whole[2].program.arena_bytes


class Traffic:
    """Records the bytes that each step moves between memory and files."""

    def __init__(self, monkeypatch):
        self.steps, run = [], Session.step

        def step(session, batches, activation_bytes=None):
            stats = session._store.io_stats
            before = stats.bytes_read, stats.bytes_written
            answer = run(session, batches, activation_bytes)
            if isinstance(answer, list) and batches[0].kind != COUNTS:
                moved = stats.bytes_read - before[0], stats.bytes_written - before[1]
                self.steps.append((*moved, session._arena.nbytes))
            return answer

        monkeypatch.setattr(Session, "step", step)


def test_micro_batches_share_one_pass_over_weights_in_files(tmp_path, whole, monkeypatch):
    """As many run layer by layer as fit into the memory for activations; bits stay equal."""
    given = {"memoryx_ram_gb": 0.0001}
    found, moved = {}, {}
    for name, count, activations in [
        ("whole", 1, None),
        ("layers", 4, None),
        ("pairs", 4, 0.00009),
        ("sequence", 4, 0.00005),
    ]:
        traffic = Traffic(monkeypatch)
        more = {"memoryx_dir": str(tmp_path / "store"), "wafer_memory_gb": activations}
        found[name] = trained(tmp_path / name, count, **given, **more)
        moved[name] = traffic.steps[-1]
        monkeypatch.undo()
    assert moved["layers"][:2] == moved["whole"][:2]
    assert moved["layers"][0] < moved["pairs"][0] <= moved["sequence"][0]
    assert moved["sequence"][2] < moved["pairs"][2] < 90000 < moved["layers"][2]
    np.testing.assert_allclose(found["layers"][0], whole[0], rtol=RTOL)
    for name in ("pairs", "sequence"):
        assert_equal(found[name][1], found["layers"][1], rtol=0)
        np.testing.assert_array_equal(found[name][0], found["layers"][0])
    assert not list((tmp_path / "store").iterdir())


def test_the_plan_of_micro_batches_is_what_a_step_moves(tmp_path, monkeypatch, caplog):
    traffic = Traffic(monkeypatch)
    with caplog.at_level("INFO", "tensorflow"):
        given = {"memoryx_dir": str(tmp_path / "store"), "memoryx_ram_gb": 0.0001}
        trained(tmp_path, 4, log_step_count_steps=1, **given)
    planned = re.search(
        r"a step reads (.*) MB and writes (.*) MB, with one pass over the weights for 4 micro",
        caplog.text,
    )
    read, written, arena_bytes = traffic.steps[-1]
    (activations,) = re.findall(r"optimizer state, (.*) MB activations", caplog.text)
    assert 0.9 * arena_bytes < 1e6 * float(activations) < 1.3 * arena_bytes
    assert planned.groups() == (f"{read / 1e6:.3g}", f"{written / 1e6:.3g}")


class Values(tf.estimator.SessionRunHook):
    """Asks for values of a step by name."""

    def __init__(self, *names):
        self.names, self.found = names, []

    def before_run(self, context):
        return tf.estimator.SessionRunArgs(list(self.names))

    def after_run(self, context, values):
        self.found.append(values.results)


def test_values_that_are_no_numbers_are_refused(tmp_path):
    def model(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        tf.reduce_sum(v1.get_default_graph().get_tensor_by_name("hidden:0"), 0, name="sums")
        return spec

    made = build(tmp_path, model=model, micro_batches=2)
    with pytest.raises(UnsupportedOpError, match="'sums.*': with micro-batches"):
        made.train(dataset, hooks=[Values("sums:0")], steps=1)


def test_what_the_session_computes_of_features_is_of_the_whole_batch(tmp_path):
    def model(features, labels, mode, params):
        tf.reduce_sum(features, 0, name="sums")
        return model_fn(features, labels, mode, params)

    found = []
    for count in (1, 2):
        hook = Values("sums:0")
        made = build(tmp_path / str(count), model=model, micro_batches=count)
        made.train(dataset, hooks=[hook], steps=2)
        found.append(hook.found)
    np.testing.assert_array_equal(found[1], found[0])


def moving(features, labels, mode, params):
    """Keeps a mean of the batch, as batch normalisation does."""
    kept = v1.get_variable("kept", [3], trainable=False)
    spec = model_fn(features, labels, mode, params)
    update = kept.assign(0.9 * kept + 0.1 * tf.reduce_mean(features, 0))
    return spec._replace(train_op=tf.group(spec.train_op, update))


def counting_what_is_learnt(features, labels, mode, params):
    spec = model_fn(features, labels, mode, params)
    loss = spec.loss / cross_wafer_sum(tf.stop_gradient(spec.loss))
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return spec._replace(loss=loss, train_op=train_op)


def with_loss(loss_of):
    """The model of the regression with another loss of its scores and labels."""

    def model(features, labels, mode, params):
        weight = v1.get_variable("weight", initializer=tf.ones([3, 1]))
        scores = tf.reshape(tf.matmul(features, weight), [-1])
        loss = tf.identity(loss_of(scores, labels), name="cost")
        step = v1.train.get_global_step()
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model


def normalised(scores, labels):
    mean, variance = tf.nn.moments(scores, [0])
    return tf.reduce_mean(tf.square((scores - mean) / tf.sqrt(variance + 1.0) - labels))


def against_the_others(scores, labels):
    costs = tf.nn.softmax_cross_entropy_with_logits(
        tf.eye(tf.shape(scores)[0]), scores[:, None] * labels
    )
    return tf.reduce_mean(costs)


def masked(scores, labels):
    weights = tf.cast(labels > 0, tf.float32)
    return tf.reduce_sum(weights * tf.square(scores - labels)) / tf.reduce_sum(weights)


def of_static_rows(scores, labels):
    return tf.nn.l2_loss(scores - labels) / int(scores.shape[0])


def with_backward(backward):
    """The mean of squares of scores whose gradient is overridden."""

    @tf.custom_gradient
    def identity(scores):
        return tf.identity(scores), lambda dy: backward(dy, scores)

    return with_loss(lambda scores, labels: tf.reduce_mean(tf.square(identity(scores) - labels)))


def weights_of_labels(scores, labels):
    return v1.losses.mean_squared_error(
        labels, scores, tf.abs(labels), reduction=v1.losses.Reduction.SUM_OVER_BATCH_SIZE
    )


def recomputed(scores, labels):
    costs = tf.recompute_grad(lambda x: tf.square(tf.tanh(x)))(scores - labels)
    return tf.reduce_mean(costs)


def reshaped(rows):
    def loss(scores, labels):
        return tf.reduce_mean(tf.math.reduce_logsumexp(tf.reshape(scores, [rows, -1]), axis=1))

    return loss


def decayed_by_parts(scores, labels):
    weight = v1.trainable_variables()[0]
    return tf.reduce_mean(tf.square(scores - labels)) + tf.nn.l2_loss(weight) * cross_wafer_sum(1.0)


def floored(scores, labels):
    return tf.reduce_mean(scores) + tf.cast(
        tf.reduce_mean(tf.cast(10 * labels, tf.int32)), tf.float32
    )


def rate_where_rows(features, labels, mode, params):
    spec = model_fn(features, labels, mode, params)
    rate = tf.where(tf.shape(features)[0] > 1, 1.0, 0.1)
    optimizer = v1.train.GradientDescentOptimizer(rate)
    return spec._replace(train_op=optimizer.minimize(spec.loss, v1.train.get_global_step()))


def rate_by_rows(features, labels, mode, params):
    weight = v1.get_variable("weight", initializer=tf.ones([3, 1]))
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight)[:, 0] - labels))
    rate = 0.1 * tf.cast(tf.shape(features)[0], tf.float32)
    train_op = v1.train.GradientDescentOptimizer(rate).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def more_rows_than_told():
    shapes = ([4, 3], [4])
    made = tf.numpy_function(
        lambda: [np.ones([6, *s[1:]], np.float32) for s in shapes], [], [tf.float32] * 2
    )
    for tensor, shape in zip(made, shapes):
        tensor.set_shape(shape)
    return tuple(made)


def test_a_check_of_features_sees_the_whole_batch(tmp_path):
    def model(features, labels, mode, params):
        with tf.control_dependencies([v1.assert_less(tf.abs(features), 1e9, message="too large")]):
            return model_fn(tf.identity(features), labels, mode, params)

    def large():  # only the last row is
        yield np.array([[0.0] * 3] * 3 + [[1e10] * 3], np.float32), np.zeros(4, np.float32)

    def input_fn():
        specs = tf.TensorSpec([4, 3]), tf.TensorSpec([4])
        return tf.data.Dataset.from_generator(large, output_signature=specs)

    build(tmp_path, model=model, micro_batches=2).train(dataset, steps=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        build(tmp_path, model=model, micro_batches=2).train(input_fn, steps=1)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda scores, labels: v1.losses.mean_squared_error(labels, scores),
        lambda scores, labels: tf.keras.losses.MeanSquaredError()(labels, scores),
        lambda scores, labels: (
            tf.nn.l2_loss(scores - labels) / tf.cast(tf.shape(scores)[0], tf.float32)
        ),
        lambda scores, labels: tf.nn.compute_average_loss(tf.square(scores - labels)),
        weights_of_labels,
        recomputed,
    ],
)
def test_losses_as_they_are_written_are_those_of_the_whole_batch(tmp_path, loss_of):
    """A mean is known in the forms that TensorFlow's own functions give it; parts have 4 rows."""

    def eights():
        return dataset().unbatch().batch(8, drop_remainder=True)

    found = []
    for count in (1, 2):
        hook = Losses()
        made = build(tmp_path / str(count), model=with_loss(loss_of), micro_batches=count)
        made.train(eights, hooks=[hook], steps=3)
        found.append(hook.found)
    np.testing.assert_allclose(found[1], found[0], rtol=RTOL)


def test_values_of_a_step_are_those_of_the_whole_batch_or_are_reported(tmp_path, caplog):
    """Sums over the batch and its size; a function of the mean is approximated."""

    def loss_of(scores, labels):
        costs = tf.square(scores - labels)
        tf.reduce_sum(costs, name="sum")
        tf.identity(tf.shape(scores)[0], name="rows")
        tf.exp(tf.reduce_mean(costs), name="exp")
        return tf.reduce_mean(costs)

    found = []
    for count in (1, 2, 4):
        hook = Values("sum:0", "rows:0", "cost:0")
        made = build(tmp_path / str(count), model=with_loss(loss_of), micro_batches=count)
        made.train(dataset, hooks=[hook], steps=2)
        found.append(hook.found)
    for values in found[1:]:
        np.testing.assert_allclose(values, found[0], rtol=RTOL)
    with caplog.at_level("INFO", "tensorflow"):
        made.train(dataset, hooks=[Values("exp:0")], steps=1)
    (line,) = {line for line in caplog.messages if "approximates" in line}
    assert names(line, "micro_batches", "'exp:0'")


def count_of(values):
    return cross_wafer_sum(tf.reduce_sum(tf.ones_like(values)))


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda s, t: tf.reduce_sum(tf.square(s - t)) / count_of(t),
        lambda s, t: tf.reduce_sum(tf.square(s - t)) / cross_wafer_sum(tf.ones([])),
        lambda s, t: tf.reduce_mean(tf.square(s - t)) * cross_wafer_sum(tf.ones([])),
        lambda s, t: tf.reduce_mean(tf.square(s - t)) / cross_wafer_sum(tf.ones([])),
    ],
)
def test_sums_over_wafers_that_scale_otherwise_than_a_mean_are_refused(tmp_path, loss_of):
    made = build(tmp_path, model=with_loss(loss_of), micro_batches=2)
    with pytest.raises(UnsupportedOpError) as raised:
        made.train(dataset, steps=1)
    assert "cross_wafer_sum scales otherwise than a mean" in str(raised.value)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda s, t: tf.reduce_sum(tf.square(s - t)) * cross_wafer_sum(tf.ones([])) / count_of(t),
        lambda s, t: tf.reduce_sum(tf.square(s - t)) * (cross_wafer_sum(1.0) / count_of(t)),
        lambda s, t: (
            tf.reduce_mean(tf.square(s - t))
            * tf.math.divide_no_nan(4.0 * cross_wafer_sum(tf.ones([])), cross_wafer_sum(4.0))
        ),
    ],
)
def test_sums_over_wafers_that_make_a_mean_train_as_the_whole_batch(tmp_path, loss_of):
    def eights():
        return dataset().unbatch().batch(8, drop_remainder=True)

    for count in (1, 2):
        made = build(tmp_path / str(count), model=with_loss(loss_of), micro_batches=count)
        made.train(eights, steps=2)
    found, expected = (variables_of(tmp_path / name)["weight"] for name in "21")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "model, input_fn, count, error, told",
    [
        (with_loss(normalised), dataset, 2, UnsupportedOpError, "'sub' .sub., which may"),
        (with_loss(of_static_rows), dataset, 2, UnsupportedOpError, "tf.shape.x..0. for x.shape.0"),
        (with_backward(lambda dy, x: tf.clip_by_value(dy, -0.1, 0.1)), dataset, 2,
         UnsupportedOpError, "custom gradient must be linear"),
        (with_backward(lambda dy, x: dy - tf.reduce_mean(dy)), dataset, 2,
         UnsupportedOpError, "custom gradient must be linear"),
        (with_backward(lambda dy, x: dy + 0.1 * x), dataset, 2,
         UnsupportedOpError, "custom gradient must be linear"),
        (with_loss(reshaped(2)), dataset, 2, UnsupportedOpError, "'Reshape.*may read several"),
        (with_loss(reshaped(4)), dataset, 2, UnsupportedOpError, "batches of other sizes"),
        (with_loss(decayed_by_parts), dataset, 2, UnsupportedOpError, "scales otherwise"),
        (with_loss(floored), dataset, 2, UnsupportedOpError, "no sum and no mean over the batch"),
        (rate_where_rows, dataset, 4, UnsupportedOpError, "number of examples"),
        (rate_by_rows, dataset, 2, UnsupportedOpError, "must not depend on the number of examples"),
        (with_loss(against_the_others), dataset, 2, UnsupportedOpError, "may read several"),
        (with_loss(lambda s, t: tf.reduce_sum(tf.square(s - t))), dataset, 2, UnsupportedOpError,
         "a sum over the batch. Use a mean"),
        (with_loss(lambda s, t: tf.reduce_sum(tf.square(s - t)) / 2.0), dataset, 2,
         UnsupportedOpError, "a sum over the batch"),
        (with_loss(masked), dataset, 2, UnsupportedOpError, "no sum and no mean over the batch"),
        (model_fn, more_rows_than_told, 2, DataError, "4. Received: 6"),
        (moving, dataset, 2, UnsupportedOpError, "through gradients only. Received: .kept"),
        (counting_what_is_learnt, dataset, 2, UnsupportedOpError, "scales otherwise"),
        (model_fn, dataset, 3, ConfigError, "batch size. Received: 3, batch size 4"),
        (model_fn, ragged_dataset, 2, ConfigError, "drop_remainder=True"),
        (model_fn, lambda: ({"x": tf.ones([4, 3]), "once": tf.ones([7])}, tf.ones([4])), 2,
         ConfigError, "Received: 'once', "),
        (model_fn, dataset, 0, ConfigError, "micro_batches must be at least 1"),
    ],
)  # fmt: skip
def test_what_would_be_another_step_is_refused(tmp_path, model, input_fn, count, error, told):
    with pytest.raises(error, match=told):
        build(tmp_path, model=model, micro_batches=count).train(input_fn, steps=1)


def test_dropout_draws_for_every_part_and_a_run_goes_on_as_it_was(tmp_path):
    def model(features, labels, mode, params):
        return model_fn(tf.nn.dropout(features, rate=0.5, seed=3), labels, mode, params)

    def made(name):
        return build(tmp_path / name, model=model, micro_batches=2)

    made("once").train(dataset, steps=4)
    made("twice").train(dataset, steps=2)
    made("twice").train(lambda: dataset(2), steps=2)
    assert_equal(variables_of(tmp_path / "once"), variables_of(tmp_path / "twice"), rtol=0)


def test_an_evaluation_and_the_host_take_batches_whole(tmp_path):
    given = {"micro_batches": 2}
    made = build(tmp_path, **given)
    made.train(dataset, steps=2)
    host = build(tmp_path / "host", use_cs=False, **given)
    host.train(dataset, steps=2)
    found, expected = (each.evaluate(dataset, steps=2) for each in (made, host))
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
