"""Checks that what tf.estimator takes is taken: own global steps, inputs with state, scaffolds.

Each scenario runs on tf.estimator's class and on ours, and what comes out is compared.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf import CerebrasEstimator
from cerebras_tf.errors import UnsupportedOpError
from tests.estimator.regression import variables_of
from tests.estimator.test_drop_in import Told, count_model, summaries

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
CLASSES = (tf.estimator.Estimator, CerebrasEstimator)
XS = np.array([[1.0], [2.0]], "f")
YS = np.array([[3.0], [5.0]], "f")


def pair():
    return {"x": tf.constant(XS)}, tf.constant(YS)


def line_model(features, labels, mode):
    """A weight and an offset; takes no parameters, so that both classes may have it."""
    weight = v1.get_variable("weight", initializer=1.0)
    scores = features["x"] * weight + v1.get_variable("offset", initializer=0.5)
    loss = tf.reduce_mean(tf.square(scores - (0.0 if labels is None else labels)))
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.05).minimize(loss, step)
    metrics = {"weight": v1.metrics.mean(weight)}
    return tf.estimator.EstimatorSpec(mode, {"scores": scores}, loss, train_op, metrics)


def outcomes(tmp_path, run):
    """What `run(class, folder)` gives for tf.estimator's class and for ours."""
    return [run(kind, str(tmp_path / kind.__name__)) for kind in CLASSES]


def assert_close(theirs, ours):
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6), theirs, ours
    )


def test_arguments_by_position_are_those_of_tf_estimator(tmp_path):
    config = tf.estimator.RunConfig(tf_random_seed=5)

    def model(features, labels, mode, params):
        return line_model(features, labels, mode)

    CerebrasEstimator(line_model, str(tmp_path / "first")).train(pair, steps=2)
    made = CerebrasEstimator(model, str(tmp_path), config, {"a": 1}, str(tmp_path / "first"))
    assert (made.config.tf_random_seed, made.params) == (5, {"a": 1})
    assert made.compile_dir == str(tmp_path / "compiled")
    found = made.evaluate(pair, steps=1)["weight"]
    assert found == pytest.approx(variables_of(tmp_path / "first")["weight"])
    assert CerebrasEstimator(line_model, str(tmp_path), config).config.tf_random_seed == 5


def test_a_plain_run_config_has_the_lines_and_rates_of_tf_estimator(tmp_path, caplog):
    def run(kind, folder):
        config = tf.estimator.RunConfig(log_step_count_steps=2, save_summary_steps=3)
        caplog.clear()
        with caplog.at_level("INFO", logger="tensorflow"):
            kind(count_model, folder, config=config).train(pair, steps=7)
        lines = [record.getMessage().partition(":")[0] for record in caplog.records]
        said = [line for line in lines if line.startswith(("global_step", "loss"))]
        rates = [step for step, _ in summaries(tmp_path / kind.__name__)["global_step/sec"]]
        return [line.partition(",")[0] for line in said], rates

    theirs, ours = outcomes(tmp_path, run)
    assert theirs == ours


class OwnStep:
    """Mixed into an estimator, leaves the global step to model_fn."""

    def _create_and_assert_global_step(self, graph):
        return None


def test_the_global_step_may_be_made_by_the_model_in_32_bits(tmp_path):
    def model(features, labels, mode):
        keys = v1.GraphKeys
        collections = [keys.GLOBAL_VARIABLES, keys.GLOBAL_STEP]
        v1.get_variable("mine", initializer=0, trainable=False, collections=collections)
        return line_model(features, labels, mode)

    def run(kind, folder):
        made = type("Own", (OwnStep, kind), {})(model, folder)
        made.train(pair, steps=2)
        made.train(pair, max_steps=5)
        return variables_of(folder), made.evaluate(pair, steps=1)

    theirs, ours = outcomes(tmp_path, run)
    assert ours[0]["mine"] == theirs[0]["mine"]
    assert ours[0]["mine"].dtype == np.int32
    assert_close(theirs, ours)


def test_the_public_model_fn_passes_what_it_is_given(tmp_path):
    def model(features, labels, mode, config):
        return tf.estimator.EstimatorSpec(mode, loss=tf.constant(float(features + labels + config)))

    made = CerebrasEstimator(model, str(tmp_path))
    with tf.Graph().as_default():
        assert made.model_fn(1, 2, "eval", 3).loss.shape == ()
    with pytest.raises(ValueError, match="should return an EstimatorSpec"):
        CerebrasEstimator(lambda features, labels, mode: "none").model_fn(1, 2, "train", None)


def test_a_model_stays_on_the_host_with_a_global_step_that_is_no_resource(tmp_path, caplog):
    made = CerebrasEstimator(line_model, str(tmp_path))
    with tf.Graph().as_default(), v1.variable_scope("", use_resource=False):
        v1.disable_resource_variables()
        try:
            v1.train.create_global_step()
            with caplog.at_level("WARNING", logger="tensorflow"):
                spec = made.model_fn(*pair(), "train", made.config)
        finally:
            v1.enable_resource_variables()
        assert spec.scaffold.saver is None
    assert "the model runs on the host, because its global step" in caplog.text


def counting():
    count = v1.get_variable("count", initializer=0.0, trainable=False)
    return {"x": tf.reshape(v1.assign_add(count, 1.0), [1, 1])}, tf.constant(YS[:1])


def scaled():
    scale = v1.get_variable("scale", initializer=2.0, trainable=False)
    return {"x": XS * scale}, tf.constant(YS)


@pytest.mark.parametrize("input_fn", [counting, scaled])
def test_variables_of_the_input_function_stay_with_it_and_are_saved(tmp_path, input_fn):
    def run(kind, folder):
        made = kind(line_model, folder)
        made.train(input_fn, steps=3)
        made.train(input_fn, steps=2)
        return variables_of(folder)

    assert_close(*outcomes(tmp_path, run))


def test_training_variables_of_the_input_function_is_refused(tmp_path):
    def input_fn():
        return {"x": XS * v1.get_variable("scale", initializer=2.0)}, tf.constant(YS)

    with pytest.raises(UnsupportedOpError, match="must be created in model_fn. Received: scale. "):
        CerebrasEstimator(line_model, str(tmp_path)).train(input_fn, steps=1)


def test_threads_that_fill_a_queue_do_not_disturb_a_step(tmp_path):
    xs = np.arange(60, dtype="f").reshape(60, 1) / 60
    input_fn = v1.estimator.inputs.numpy_input_fn({"x": xs}, 2 * xs, 2, 1, shuffle=False)

    def run(kind, folder):
        made = kind(line_model, folder)
        made.train(input_fn)
        return [row["scores"] for row in made.predict(input_fn)], made.evaluate(input_fn)

    assert_close(*outcomes(tmp_path, run))


def test_a_metric_of_a_variable_counts_as_often_as_it_sums(tmp_path):
    def run(kind, folder):
        data = tf.data.Dataset.from_tensors
        return kind(line_model, folder).evaluate(lambda: data(({"x": XS}, YS)).repeat(3))

    theirs, ours = outcomes(tmp_path, run)
    assert ours["weight"] == theirs["weight"] == 1.0


def test_the_global_step_may_be_warm_started(tmp_path):
    def run(kind, folder):
        kind(line_model, f"{folder}/first").train(pair, steps=3)
        settings = tf.estimator.WarmStartSettings(f"{folder}/first", vars_to_warm_start=[".*"])
        kind(line_model, f"{folder}/second", warm_start_from=settings).train(pair, steps=1)
        return variables_of(f"{folder}/second")

    theirs, ours = outcomes(tmp_path, run)
    assert ours["global_step"] == 4
    assert_close(theirs, ours)


def test_a_scaffold_stays_the_object_that_hooks_hold_on_to(tmp_path):
    class Scaffold(v1.train.Scaffold):
        def finalize(self):
            seen.append("finalized")
            return super().finalize()

    def run(kind, folder):
        def model(features, labels, mode):
            scaffold = Scaffold()
            saver = v1.train.CheckpointSaverHook(f"{folder}/own", save_steps=1, scaffold=scaffold)
            spec = line_model(features, labels, mode)
            return spec._replace(scaffold=scaffold, training_hooks=[saver])

        kind(model, folder).train(pair, steps=2)
        return variables_of(f"{folder}/own")

    seen = []
    assert_close(*outcomes(tmp_path, run))
    assert seen == ["finalized"] * 2


def test_a_model_without_variables_may_have_an_init_fn(tmp_path):
    def run(kind, folder):
        def model(features, labels, mode):
            scaffold = v1.train.Scaffold(init_fn=lambda scaffold, session: told.append(mode))
            return count_model(features, labels, mode)._replace(scaffold=scaffold)

        told = []
        hook = Told()
        kind(model, folder).train(pair, hooks=[hook], steps=1)
        next(kind(model, folder).predict(pair))
        return told, hook.log

    theirs, ours = outcomes(tmp_path, run)
    assert theirs == ours


class Counter(tf.estimator.SessionRunHook):
    """Counts runs in a variable of its own."""

    def begin(self):
        runs = v1.get_variable("runs", initializer=0.0, trainable=False)
        self._add = v1.assign_add(runs, 1.0)

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs(self._add)


def test_variables_that_hooks_make_are_saved_and_go_on(tmp_path):
    def run(kind, folder):
        for _ in range(2):
            kind(line_model, folder).train(pair, hooks=[Counter()], steps=2)
        return variables_of(folder)

    theirs, ours = outcomes(tmp_path, run)
    assert ours["runs"] == 4.0
    assert_close(theirs, ours)
