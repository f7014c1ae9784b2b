"""Checks that tf.estimator's loop, hooks and services work with the model on the wafer."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.errors import ConfigError, DataError, NumericsError
from cerebras_tf.estimator.spec import CSEstimatorSpec
from cerebras_tf.ir import parse_step
from tests.estimator import regression
from tests.estimator.regression import assert_equal, build, dataset, variables_of

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


class Fetch(tf.estimator.SessionRunHook):
    """Fetches what `choose(step number)` names and keeps the results."""

    def __init__(self, choose, begin=None):
        self.results, self._choose, self._begin, self._count = [], choose, begin, 0

    def begin(self):
        self.tensor = self._begin() if self._begin else None

    def before_run(self, run_context):
        self._count += 1
        fetches = self._choose(self._count)
        return None if fetches is None else tf.estimator.SessionRunArgs(fetches)

    def after_run(self, run_context, run_values):
        self.results.append(run_values.results)


def train_both(tmp_path, make_hooks, steps=4):
    """Hooks after training on the host and on the wafer."""
    kept = []
    for use_cs in (False, True):
        hooks = make_hooks()
        made = build(tmp_path / str(use_cs))
        made.train(dataset, hooks=hooks, max_steps=steps, use_cs=use_cs)
        kept.append(hooks)
    return kept


def test_training_on_wafer_and_host_gives_the_same_variables(tmp_path):
    train_both(tmp_path, list)
    assert_equal(variables_of(tmp_path / "True"), variables_of(tmp_path / "False"), 1e-5)


def test_a_hook_may_fetch_any_tensor_of_the_model_by_name(tmp_path):
    names = ["hidden:0", "layer/kernel/Read/ReadVariableOp:0", "cost:0"]
    (host,), (wafer,) = train_both(tmp_path, lambda: [Fetch(lambda step: names)])
    assert len(host.results) == len(wafer.results) == 4
    for theirs, ours in zip(host.results, wafer.results):
        for a, b in zip(theirs, ours):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_a_folder_where_no_checkpoint_is_found_again_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="model_dir: must be a path without"):
        build(tmp_path / "a[1]")
    assert not list(tmp_path.iterdir())


def test_a_hook_may_fetch_gradients(tmp_path):
    class Gradients(Fetch):
        def begin(self):
            loss = v1.get_default_graph().get_tensor_by_name("cost:0")
            self.tensors = tf.gradients(loss, v1.trainable_variables())

    def make():
        hook = Gradients(lambda step: hook.tensors)
        return [hook]

    (host,), (wafer,) = train_both(tmp_path, make)
    for theirs, ours in zip(host.results, wafer.results):
        for a, b in zip(theirs, ours):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_a_hook_that_fetches_on_some_steps_only_gets_them(tmp_path):
    (host,), (wafer,) = train_both(
        tmp_path, lambda: [Fetch(lambda step: "hidden:0" if step % 2 else None)]
    )
    assert [r is None for r in wafer.results] == [False, True, False, True]
    np.testing.assert_allclose(wafer.results[2], host.results[2], rtol=1e-5)


def test_a_hook_may_add_operations_that_read_tensors_of_the_model(tmp_path):
    def add():
        graph = v1.get_default_graph()
        hidden = graph.get_tensor_by_name("hidden:0")
        return tf.strings.format("{}", tf.reduce_sum(hidden) > 0)

    def make():
        hook = Fetch(lambda step: hook.tensor, add)
        return [hook]

    (host,), (wafer,) = train_both(tmp_path, make)
    assert wafer.results == host.results


def test_a_logging_tensor_hook_logs_an_activation(tmp_path):
    lines = []

    def show(values):
        lines.append(values["shown"].shape)
        return "shown"

    hook = tf.estimator.LoggingTensorHook({"shown": "hidden:0"}, every_n_iter=2, formatter=show)
    build(tmp_path).train(dataset, hooks=[hook], max_steps=4)
    assert lines == [(4, 2), (4, 2)]


def test_a_stop_at_step_hook_stops(tmp_path):
    hook = tf.estimator.StopAtStepHook(last_step=3)
    build(tmp_path).train(dataset, hooks=[hook])
    assert variables_of(tmp_path)["global_step"] == 3


def test_steps_count_on_from_the_checkpoint(tmp_path):
    made = build(tmp_path)
    made.train(dataset, steps=2)
    made.train(dataset, steps=3)
    assert made.get_variable_value("global_step") == 5


def test_saving_listeners_are_told_of_every_checkpoint(tmp_path):
    class Listener(tf.estimator.CheckpointSaverListener):
        told = []

        def begin(self):
            self.told.append("begin")

        def after_save(self, session, global_step_value):
            self.told.append(int(global_step_value))

        def end(self, session, global_step_value):
            self.told.append("end")

    build(tmp_path, save_checkpoints_steps=2).train(
        dataset, max_steps=5, saving_listeners=[Listener()]
    )
    assert Listener.told == ["begin", 0, 2, 4, 5, "end"]


@pytest.mark.skipif(
    not hasattr(tf.data.experimental, "CheckpointInputPipelineHook"),
    reason="TensorFlow 2.16 removed the hook",
)
def test_the_input_pipeline_is_saved_and_goes_on(tmp_path):
    """With a CheckpointInputPipelineHook the second run sees the batches the first did not."""
    seen = {}
    for name, parts in {"pure": [6], "parts": [4, 6]}.items():
        seen[name] = []
        for last in parts:
            made = build(tmp_path / name)
            fetch = Fetch(lambda step: "IteratorGetNext:0")
            saver = tf.data.experimental.CheckpointInputPipelineHook(made)
            made.train(dataset, hooks=[saver, fetch], max_steps=last)
            seen[name].extend(fetch.results)
    np.testing.assert_array_equal(np.stack(seen["parts"]), np.stack(seen["pure"]))
    assert_equal(variables_of(tmp_path / "parts"), variables_of(tmp_path / "pure"), 0)


def read_summaries(folder):
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value
    return found


def test_summaries_of_scalars_histograms_and_text_are_written(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        graph = v1.get_default_graph()
        v1.summary.scalar("error", spec.loss * 2)
        v1.summary.histogram("activations", graph.get_tensor_by_name("hidden:0"))
        v1.summary.histogram("weights", v1.trainable_variables()[0])
        v1.summary.text("words", tf.strings.as_string(spec.loss))
        return spec

    found = {}
    for use_cs in (False, True):
        folder = tmp_path / str(use_cs)
        build(folder, model=model, save_summary_steps=2).train(dataset, max_steps=5, use_cs=use_cs)
        found[use_cs] = read_summaries(folder)
    host, wafer = found[False], found[True]
    assert set(host) <= set(wafer)
    assert list(wafer["loss"]) == [1, 2, 4, 5]
    for tag in ("error", "loss"):
        assert host[tag].keys() == wafer[tag].keys()
        for step, value in host[tag].items():
            assert wafer[tag][step].simple_value == pytest.approx(value.simple_value, rel=1e-5)
    assert wafer["activations"][4].histo.sum == pytest.approx(host["activations"][4].histo.sum)
    assert wafer["weights"][4].histo.num == host["weights"][4].histo.num == 6
    assert host["words"].keys() == wafer["words"].keys()


def test_a_summary_saver_hook_writes_a_summary_made_in_model_fn(tmp_path):
    def hooks(loss):
        summary = v1.summary.scalar("own", loss)
        return [tf.estimator.SummarySaverHook(2, output_dir=str(tmp_path), summary_op=summary)]

    build(tmp_path, {"hooks": hooks}).train(dataset, max_steps=5)
    assert sorted(read_summaries(tmp_path)["own"]) == [1, 3, 5]


def test_evaluation_gives_the_metrics_of_the_host(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=3)
    host = made.evaluate(regression.ragged_dataset, use_cs=False, name="host")
    wafer = made.evaluate(regression.ragged_dataset, use_cs=True, name="wafer")
    assert set(host) == set(wafer) == {"loss", "error", "positive", "global_step"}
    for name, value in host.items():
        assert wafer[name] == pytest.approx(value, rel=1e-5), name


def test_prediction_yields_every_example_of_a_last_partial_batch(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=3)
    host = list(made.predict(regression.ragged_dataset, use_cs=False))
    wafer = list(made.predict(regression.ragged_dataset, use_cs=True))
    assert len(host) == len(wafer) == 48
    for theirs, ours in zip(host, wafer):
        assert set(ours) == {"scores", "hidden"}
        for key in ours:
            np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-5, atol=1e-6)


def test_prediction_yields_as_many_as_asked_and_only_the_keys_asked(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=1)
    found = list(made.predict(dataset, predict_keys=["scores"], num_samples=5))
    assert [set(item) for item in found] == [{"scores"}] * 5
    batch = next(made.predict(dataset, yield_single_examples=False))
    assert batch["hidden"].shape == (4, 2)


def test_host_calls_give_metrics_of_wafer_tensors(tmp_path):
    def metrics(labels, scores):
        return {"error": v1.metrics.mean_absolute_error(labels, scores)}

    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        return CSEstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            host_call=(metrics, [labels, spec.predictions["scores"]]),
        )

    made = build(tmp_path, model=model)
    made.train(dataset, max_steps=2)
    wafer = made.evaluate(regression.ragged_dataset, use_cs=True)
    plain = build(tmp_path).evaluate(regression.ragged_dataset, use_cs=False)
    assert set(wafer) == {"loss", "error", "global_step"}
    assert wafer["error"] == pytest.approx(plain["error"], rel=1e-5)


def test_stores_of_killed_processes_are_removed_even_if_nothing_is_left_to_do(tmp_path):
    for folder in ("memoryx-a", "rank_1/memoryx-b", "other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "lock").touch()
    build(tmp_path / "model", memoryx_dir=str(tmp_path))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"rank_1", "other", "other/lock"}


def test_train_and_evaluate_alternates(tmp_path):
    made = build(tmp_path, save_checkpoints_steps=2)
    train_spec = tf.estimator.TrainSpec(dataset, max_steps=4)
    eval_spec = tf.estimator.EvalSpec(
        regression.ragged_dataset, steps=None, start_delay_secs=0, throttle_secs=0
    )
    metrics, _ = made.train_and_evaluate(train_spec, eval_spec)
    assert metrics["global_step"] == 4
    assert sorted(read_summaries(tmp_path / "eval")["error"]) == [2, 4]


def test_tf_estimators_own_train_and_evaluate_takes_the_estimator(tmp_path):
    made = build(tmp_path)
    train_spec = tf.estimator.TrainSpec(dataset, max_steps=2)
    eval_spec = tf.estimator.EvalSpec(dataset, steps=2, start_delay_secs=0, throttle_secs=0)
    metrics, _ = tf.estimator.train_and_evaluate(made, train_spec, eval_spec)
    assert metrics["global_step"] == 2


@pytest.mark.parametrize("place", ["training", "evaluation"])
def test_a_signal_ends_an_evaluation_within_training_too(tmp_path, place):
    def send(step):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    hooks = {"training": [], "evaluation": []}
    hooks[place] = [Fetch(send)]
    made = build(tmp_path, save_checkpoints_steps=2)
    train_spec = tf.estimator.TrainSpec(dataset, max_steps=10**6, hooks=hooks["training"])
    eval_spec = tf.estimator.EvalSpec(  # of endless data, so that nothing else ends it
        dataset if place == "evaluation" else regression.ragged_dataset,
        steps=None,
        hooks=hooks["evaluation"],
        start_delay_secs=0,
        throttle_secs=0,
    )
    with pytest.raises(SystemExit) as ended:
        tf.estimator.train_and_evaluate(made, train_spec, eval_spec)
    assert ended.value.code == 143
    evaluated = sorted(read_summaries(tmp_path / "eval").get("error", {}))
    step = tf.train.load_variable(str(tmp_path), "global_step")
    if place == "evaluation":
        assert not evaluated
        assert step == 2
    else:
        assert step >= 3
        assert step not in evaluated


def test_a_saved_model_runs_without_the_wafer(tmp_path):
    made = build(tmp_path / "model")
    made.train(dataset, max_steps=2)

    def receiver():
        features = v1.placeholder(tf.float32, [None, 3], "features")
        return tf.estimator.export.TensorServingInputReceiver(features, features)

    path = made.export_saved_model(str(tmp_path / "saved"), receiver)
    loaded = tf.saved_model.load(path.decode()).signatures["serving_default"]
    features = regression.data()[0][0]
    expected = next(made.predict(dataset, yield_single_examples=False))
    (argument,) = loaded.structured_input_signature[1]
    found = loaded(**{argument: tf.constant(features)})
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5, atol=1e-6)


def test_a_nan_loss_ends_training_and_the_last_checkpoint_stays_usable(tmp_path):
    def input_fn():
        features, labels = regression.data()
        labels[3, 1] = np.nan
        return tf.data.Dataset.from_tensor_slices((features, labels))

    made = build(tmp_path, save_checkpoints_steps=1)
    with pytest.raises(NumericsError, match="step 4"):
        made.train(input_fn, max_steps=10)
    saved = variables_of(tmp_path)
    assert saved["global_step"] == 3
    assert all(np.isfinite(content).all() for content in saved.values())
    made.train(dataset, steps=1)


def lookup_model(features, labels, mode, params):
    table = v1.get_variable("table", initializer=np.ones([5, 2], np.float32))
    rows = tf.gather(table, features)
    scores = tf.reduce_sum(rows, -1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=scores)
    loss = tf.reduce_mean(tf.square(scores))
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def numbers(*values):
    return lambda: tf.data.Dataset.from_tensors(np.array(values, np.int32)).repeat(3)


@pytest.mark.parametrize("method", ["train", "evaluate", "predict"])
def test_errors_of_a_step_surface_as_themselves(tmp_path, method):
    made = build(tmp_path, model=lookup_model)
    made.train(numbers(1, 2), max_steps=1)
    with pytest.raises(DataError, match="17"):
        result = getattr(made, method)(numbers(1, 17))
        list(result)


def test_compile_says_what_a_program_needs_without_running_it(tmp_path):
    made = build(tmp_path)
    program = made.compile(dataset)
    assert program is not None and program.layers and program.arena_bytes > 0
    (text,) = (path.read_text() for path in (tmp_path / "compiled").glob("program_train_*.txt"))
    assert set(parse_step(text).variables) == set(program.variables)
    made.compile(dataset, mode=tf.estimator.ModeKeys.PREDICT)
    names = sorted(path.name[:-17] for path in (tmp_path / "compiled").glob("*.zip"))
    assert names == ["program_predict", "program_train"]
    assert made.compile(regression.ragged_dataset, validate_only=True) is None
    assert tf.train.latest_checkpoint(str(tmp_path)) is None
