"""Checks how fetches of a running session are turned into values of the wafer."""

from __future__ import annotations

import functools
import gc
import re
import weakref
from collections import OrderedDict, defaultdict, namedtuple

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as client_session

from cerebras_tf.errors import ConfigError
from cerebras_tf.step.session_hook import with_values
from cerebras_tf.tf_session.structures import leaves, map_fetches
from tests.estimator import regression
from tests.estimator.regression import build, dataset

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
Pair = namedtuple("Pair", ["left", "right"])
STRUCTURE = {"a": [1, (2, None)], "b": Pair(3, OrderedDict(c=4))}


def test_fetch_structures_keep_their_shape():
    changed = map_fetches(STRUCTURE, lambda leaf: leaf * 10)
    assert changed == {"a": [10, (20, None)], "b": Pair(30, OrderedDict(c=40))}
    assert isinstance(changed["b"], Pair)
    assert isinstance(changed["b"].right, OrderedDict)
    changed = map_fetches(defaultdict(list, a=1), lambda leaf: leaf * 10)
    assert changed == {"a": 10} and changed["new"] == []


def test_structures_that_tensorflow_tracks_are_taken_apart():
    module = tf.Module()
    module.held = {"a": [1, (2, 3)], "b": Pair(4, OrderedDict(c=5))}
    assert leaves(module.held) == [1, 2, 3, 4, 5]
    changed = map_fetches(module.held, lambda leaf: leaf * 10)
    assert changed == {"a": [10, (20, 30)], "b": Pair(40, {"c": 50})}


def test_values_take_the_places_of_leaves():
    values = with_values(STRUCTURE, ["one", "two", "three", "four"])
    assert values == {"a": ["one", ("two", None)], "b": Pair("three", {"c": "four"})}
    assert isinstance(values["b"].right, OrderedDict)


class FetchAll(tf.estimator.SessionRunHook):
    """Fetches one structure of tensors, names, operations and variables of every kind."""

    def before_run(self, run_context):
        graph = run_context.session.graph
        hidden = graph.get_tensor_by_name("hidden:0")
        kernel = next(v for v in v1.global_variables() if v.op.name == "layer/kernel")
        return tf.estimator.SessionRunArgs(
            {
                "nested": Pair(hidden, ["cost:0", hidden]),
                "ordered": OrderedDict(b=hidden, a="cost:0"),
                "default": defaultdict(list, cost="cost:0"),
                "op": graph.get_operation_by_name("hidden"),
                "step": v1.train.get_global_step(),
                "variable": kernel,
            }
        )

    def after_run(self, run_context, run_values):
        self.results = run_values.results


def test_fetches_of_every_kind_give_what_the_host_gives(tmp_path):
    hooks = [FetchAll(), FetchAll()]
    for use_cs, hook in zip((False, True), hooks):
        build(tmp_path / str(use_cs)).train(dataset, hooks=[hook], max_steps=1, use_cs=use_cs)
    host, wafer = (hook.results for hook in hooks)
    assert wafer["op"] is None
    for name in host:
        assert type(wafer[name]) is type(host[name]), name
    assert list(wafer["ordered"]) == list(host["ordered"]) == ["b", "a"]
    assert wafer["default"]["absent"] == []
    np.testing.assert_allclose(wafer["nested"].left, host["nested"].left, rtol=1e-5)
    np.testing.assert_allclose(wafer["nested"].right[0], host["nested"].right[0], rtol=1e-5)
    assert wafer["variable"].shape == (3, 2)


class FetchComposite(FetchAll):
    """Fetches a sparse and a ragged tensor and indexed slices, of values of the wafer."""

    def begin(self):
        hidden = v1.get_default_graph().get_tensor_by_name("hidden:0")  # [4, 2]
        flat = tf.reshape(hidden, [8])
        self.sparse = tf.SparseTensor([[0, 1], [1, 0]], flat[:2], [2, 2])
        self.ragged = tf.RaggedTensor.from_row_splits(flat, [0, 3, 3, 8])
        self.slices = [
            tf.IndexedSlices(hidden, tf.constant([0, 1, 2, 3])),
            tf.IndexedSlices(hidden, tf.constant([3, 2, 1, 0]), tf.constant([9, 2])),
        ]

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs([self.sparse, self.ragged, *self.slices])


def test_composite_tensors_are_fetched_as_on_the_host(tmp_path):
    hooks = [FetchComposite(), FetchComposite()]
    for use_cs, hook in zip((False, True), hooks):
        build(tmp_path / str(use_cs)).train(dataset, hooks=[hook], max_steps=1, use_cs=use_cs)
    for host, wafer in zip(hooks[0].results, hooks[1].results):
        assert type(wafer) is type(host)
    (sparse, ragged, *slices), (of_host, ragged_of_host, *slices_of_host) = (
        hook.results for hook in reversed(hooks)
    )
    np.testing.assert_allclose(sparse.values, of_host.values, rtol=1e-5)
    np.testing.assert_array_equal(sparse.indices, [[0, 1], [1, 0]])
    np.testing.assert_allclose(ragged.flat_values, ragged_of_host.flat_values, rtol=1e-5)
    np.testing.assert_array_equal(ragged.row_splits, [0, 3, 3, 8])
    for made, wanted in zip(slices, slices_of_host):
        np.testing.assert_allclose(made.values, wanted.values, rtol=1e-5)
        np.testing.assert_array_equal(made.indices, wanted.indices)
    assert slices[0].dense_shape is None
    np.testing.assert_array_equal(slices[1].dense_shape, [9, 2])


def test_fetches_in_a_class_made_by_attrs_are_filled_in(tmp_path):
    attr = pytest.importorskip("attr")
    made = attr.make_class("Made", ["cost", "hidden"])

    class Fetch(FetchAll):
        def before_run(self, run_context):
            return tf.estimator.SessionRunArgs(made("cost:0", "hidden:0"))

    hook = Fetch()
    build(tmp_path).train(dataset, hooks=[hook], max_steps=1)
    assert isinstance(hook.results, made)
    assert (hook.results.cost.shape, hook.results.hidden.shape) == ((), (4, 2))


def test_a_hooks_own_call_of_the_session_reads_values_without_making_a_step(tmp_path):
    class Reader(tf.estimator.SessionRunHook):
        steps = []

        def after_run(self, run_context, run_values):
            session = run_context.session
            self.steps.append(int(session.run(v1.train.get_global_step())))

    build(tmp_path).train(dataset, hooks=[Reader()], max_steps=3)
    assert Reader.steps == [1, 2, 3]


class ReadStep(tf.estimator.SessionRunHook):
    """Fetches the global step beside the training op, in every way."""

    def __init__(self):
        self.seen = []

    def begin(self):
        step = v1.train.get_global_step()
        self.tensors = [step, step.read_value(), *(tf.identity(step) for _ in range(50))]

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs(self.tensors)

    def after_run(self, run_context, run_values):
        self.seen.append({int(value) for value in run_values.results})


def test_the_global_step_fetched_with_a_step_is_the_one_before_it(tmp_path):
    hook, threads = ReadStep(), v1.ConfigProto(inter_op_parallelism_threads=1)
    made = build(tmp_path, session_config=threads)
    made.train(dataset, hooks=[hook], max_steps=200)
    assert hook.seen == [{step} for step in range(200)]


def test_hooks_of_tensorflow_that_count_steps_act_at_the_steps_of_the_host(tmp_path):
    found = []
    for use_cs in (False, True):
        folder = tmp_path / str(use_cs)
        lines = []
        named = {"step": "global_step/add:0"}
        with tf.Graph().as_default():  # it opens its file at once
            profiler = tf.estimator.ProfilerHook(save_steps=6, output_dir=str(folder))
        hooks = [
            tf.estimator.StepCounterHook(3, output_dir=str(folder)),
            tf.estimator.CheckpointSaverHook(str(folder), save_steps=4),
            tf.estimator.LoggingTensorHook(
                named,
                every_n_iter=5,
                formatter=lambda values, lines=lines: lines.append(int(values["step"])) or "",
            ),
            profiler,
            tf.estimator.StopAtStepHook(num_steps=14),
        ]

        def model(features, labels, mode, params):
            spec = regression.model_fn(features, labels, mode, params)
            summary = v1.summary.scalar("own", spec.loss)
            hook = tf.estimator.SummarySaverHook(5, None, params["folder"], None, None, summary)
            return spec._replace(training_hooks=[hook])

        made = build(folder, {"folder": str(folder)}, model)
        made.train(dataset, hooks=hooks, use_cs=use_cs)
        steps = {}
        for path in folder.glob("events.out.tfevents.*"):
            for event in v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    steps.setdefault(value.tag, set()).add(event.step)
        saved = tf.train.get_checkpoint_state(str(folder)).all_model_checkpoint_paths
        timelines = {int(path.stem.partition("-")[2]) for path in folder.glob("timeline-*")}
        found.append((steps["global_step/sec"], [path.rpartition("-")[2] for path in saved]))
    assert found[0] == found[1]
    # These hooks fetch the step beside its update: what the host sees is before or after it, as
    # its threads have it; the wafer's is always the same.
    assert (steps["own"], timelines) == ({1, 6, 11}, {6, 12})
    assert lines == [0, 5, 10]  # on the wafer; on the host it may be a step more


class Kernel(tf.estimator.SessionRunHook):
    """Knows a variable and a tensor that depends on variables alone; keeps what it reads."""

    def __init__(self):
        self.read = []

    def begin(self):
        self.kernel = v1.global_variables("layer/kernel")[0]
        self.norm = tf.norm(self.kernel.read_value())
        self.halved = self.kernel.assign(self.kernel * 0.5)
        self.grown = tf.group(v1.assign(self.kernel, tf.ones([3, 2])))

    def after_run(self, run_context, run_values):
        self.act(run_context.session)

    def act(self, session):
        raise NotImplementedError


class ReadsWeights(Kernel):
    def act(self, session):
        self.read.append(session.run({"sum": self.kernel, "norm": self.norm})["norm"])


class AssignsWeights(Kernel):
    def act(self, session):
        self.read.append(session.run(self.halved).sum())


class LoadsWeights(Kernel):
    def act(self, session):
        self.kernel.load(np.full([3, 2], 0.1, np.float32), session)


class AssignsBesideAStep(Kernel):
    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs([self.grown, v1.train.get_global_step()])

    def after_run(self, run_context, run_values):
        self.read.append(run_context.session.run(self.norm))


class LoadsAtTheStart(Kernel):
    def after_create_session(self, session, coord):
        self.kernel.load(np.ones([3, 2], np.float32), session)

    def act(self, session):
        pass


KINDS = [ReadsWeights, AssignsWeights, LoadsWeights, LoadsAtTheStart]


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_that_read_or_set_weights_do_as_on_the_host(tmp_path, kind):
    """On host and wafer the same batches are seen: reading weights takes none from the input."""
    found = []
    for use_cs in (False, True):
        made, hooks = build(tmp_path / str(use_cs), use_cs=use_cs), [kind(), kind()]
        for hook in hooks:  # from initial weights, and from a checkpoint
            made.train(dataset, hooks=[hook], steps=3)
        read = [value for hook in hooks for value in hook.read]
        found.append((regression.variables_of(tmp_path / str(use_cs)), read))
    regression.assert_equal(found[1][0], found[0][0], 1e-4)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4)


def test_what_is_assigned_beside_a_step_is_there_after_it(tmp_path):
    hook = AssignsBesideAStep()
    build(tmp_path).train(dataset, hooks=[hook], max_steps=3)
    np.testing.assert_allclose(hook.read, [6**0.5] * 3, rtol=1e-6)


def test_an_assignment_that_needs_a_batch_is_refused_outside_the_training_op(tmp_path):
    class Assign(tf.estimator.SessionRunHook):
        def begin(self):
            hidden = v1.get_default_graph().get_tensor_by_name("hidden:0")
            kernel = v1.global_variables("layer/kernel")[0]
            self.op = kernel.assign_add(tf.ones([3, 2]) * tf.reduce_sum(hidden)).op

        def before_run(self, run_context):
            return tf.estimator.SessionRunArgs(self.op)

    with pytest.raises(ConfigError, match="must not depend on a batch"):
        build(tmp_path).train(dataset, hooks=[Assign()], max_steps=1)


class Runs(tf.estimator.SessionRunHook):
    """Runs operations at one moment of every step; `make` adds them to the graph."""

    def __init__(self, make, moment="after"):
        self.make, self.moment, self.given = make, moment, []

    def begin(self):
        self.ops = self.make()

    def before_run(self, run_context):
        if self.moment == "before":
            self.given.append(run_context.session.run(self.ops))
        return tf.estimator.SessionRunArgs(self.ops) if self.moment == "beside" else None

    def after_run(self, run_context, run_values):
        if self.moment == "after":
            self.given.append(run_context.session.run(self.ops))


def kernel_and_own():
    """The variable that a step updates, and two that only a hook uses."""
    own = [v for v in v1.global_variables() if v.op.name in ("own", "more")]
    return (v1.global_variables("layer/kernel")[0], *own)


def with_own_variables(features, labels, mode, params):
    kernel = np.full([3, 2], 0.2, np.float32)
    for name in ("own", "more"):
        v1.get_variable(name, initializer=kernel, trainable=False)
    made = {}
    spec = regression.model_fn(features, labels, mode, params)
    made["ema"] = tf.train.ExponentialMovingAverage(0.5)
    weight, own, more = kernel_and_own()
    makers = {
        "clip": lambda: tf.group(weight.assign(tf.clip_by_value(weight, -0.3, 0.3))),
        "average": lambda: made["ema"].apply([weight]),
        "target": lambda: own.assign(weight),
        "count": lambda: own.assign_add(tf.ones([3, 2])),
        "decay": lambda: v1.train.MomentumOptimizer(0.1, 0.9).minimize(
            tf.reduce_sum(tf.square(weight)), var_list=[weight]
        ),
        "adam": lambda: v1.train.AdamOptimizer(0.1).minimize(
            tf.reduce_sum(tf.square(weight)), var_list=[weight]
        ),
        "shared": lambda: shared(own, more),
        "copy": lambda: tf.identity(own.assign(own * 0.5 + weight)),
        "in_order": lambda: [in_order(own, weight, more)],
        "rows": lambda: tf.group(v1.scatter_add(own, [0, 2], weight[:2])),
        "branch": lambda: tf.cond(
            weight[0, 0] > -9, lambda: own.assign(2 * weight), lambda: own.assign(own)
        ),
        "text": lambda: tf.strings.format("{}", tf.reduce_sum(own.assign_add(weight))),
    }
    hooks = []
    for kind in params["kinds"]:
        make = makers[kind]
        if kind != "text":  # a step would compute what text made here reads
            made[kind] = make()
            make = functools.partial(made.get, kind)
        hooks.append(Runs(make, params["moment"]))
    return spec._replace(training_hooks=hooks)


def shared(own, more):
    """Two fetches that need the same count and the same draw."""
    with tf.control_dependencies([more.assign_add(tf.random.uniform([3, 2], seed=3))]):
        return [tf.group(own.assign_add(more)), tf.identity(own * more)]


def in_order(own, weight, more):
    with tf.control_dependencies([own.assign(2 * weight)]):
        return tf.group(more.assign_add(own))


HOOK_KINDS = ["clip average target", "count decay", "adam shared", "copy in_order rows"]
HOOK_KINDS += ["branch text"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kinds", HOOK_KINDS)
def test_what_hooks_assign_of_variables_alone_is_what_the_host_assigns(tmp_path, kinds, moment):
    found = []
    for use_cs in (False, True):
        params = {"kinds": kinds.split(), "moment": moment}
        made = build(tmp_path / str(use_cs), params, with_own_variables, use_cs=use_cs)
        made.train(dataset, steps=3)
        found.append(regression.variables_of(tmp_path / str(use_cs)))
    regression.assert_equal(found[1], found[0], 1e-5)


@pytest.mark.parametrize("kind", ["clip", "average", "target", "count", "decay"])
def test_what_a_hook_assigns_beside_a_step_is_assigned_after_it(tmp_path, kind):
    """On the host it is assigned before, after or amidst the step, as threads have it."""
    found = []
    for moment in ("after", "beside"):
        params = {"kinds": [kind], "moment": moment}
        build(tmp_path / moment, params, with_own_variables).train(dataset, steps=3)
        found.append(regression.variables_of(tmp_path / moment))
    regression.assert_equal(found[1], found[0], 0)


def sub_networks(features, labels, mode, params):
    """As TF-GAN has them: hooks run the updates, the training op only counts."""
    spec = regression.model_fn(features, labels, mode, params)
    update = v1.train.GradientDescentOptimizer(0.1).minimize(spec.loss)
    count = v1.train.get_global_step().assign_add(1)
    return spec._replace(
        train_op=tf.group(count), training_hooks=[Runs(lambda: update, params["moment"])]
    )


@pytest.mark.parametrize("moment", ["before", "after", "beside"])
def test_an_optimizer_of_a_hook_that_needs_a_batch_is_refused_by_name(tmp_path, moment):
    text = "'GradientDescent', which runs .*ResourceApplyGradientDescent.* Make it part of train_op"
    with pytest.raises(ConfigError, match=text):
        build(tmp_path, {"moment": moment}, sub_networks).train(dataset, max_steps=2)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_update_that_steps_make_is_refused_where_a_hook_makes_it_once_more(tmp_path, moment):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        kernel = v1.global_variables("layer/kernel")[0]
        halve = tf.group(kernel.assign(kernel * 0.5))
        return spec._replace(
            train_op=tf.group(spec.train_op, halve), training_hooks=[Runs(lambda: halve, moment)]
        )

    with pytest.raises(ConfigError, match="must be fetched together with train_op.*group_deps"):
        build(tmp_path, model=model).train(dataset, max_steps=1)


def test_an_assignment_of_a_hook_together_with_the_training_op_is_refused(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        kernel = v1.global_variables("layer/kernel")[0]
        with tf.control_dependencies([spec.train_op]):
            both = tf.group(kernel.assign(kernel * 0.5))
        return spec._replace(training_hooks=[Runs(lambda: both, "beside")])

    with pytest.raises(ConfigError, match="must not depend on a batch or a step"):
        build(tmp_path, model=model).train(dataset, max_steps=1)


def test_an_evaluation_hook_that_reads_weights_leaves_the_batches_alone(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=2)
    hook = ReadsWeights()
    alone = made.evaluate(regression.ragged_dataset)
    assert made.evaluate(regression.ragged_dataset, hooks=[hook]) == alone
    assert len(hook.read) == 5


def test_metrics_of_weights_alone_are_had_when_the_data_has_ended(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        kernel = v1.trainable_variables()[0]
        own = {"norm": (tf.norm(kernel), tf.no_op()), "first": (kernel[0, 0], tf.no_op())}
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **own})

    made = build(tmp_path, model=model)
    made.train(dataset, max_steps=1)
    host, wafer = (made.evaluate(regression.ragged_dataset, use_cs=cs) for cs in (False, True))
    assert host == pytest.approx(wafer, rel=1e-6) and {"norm", "first"} < set(host)


def test_steps_run_by_a_callable_that_is_made_once(tmp_path, monkeypatch):
    """Every step fetches the same; TensorFlow's run would look all of it up each time."""
    made, make = [], v1.Session._make_callable_from_options

    def noted(session, options):
        made.append(options)
        return make(session, options)

    monkeypatch.setattr(client_session.BaseSession, "_make_callable_from_options", noted)
    build(tmp_path).train(dataset, steps=5)
    assert len(made) == 1


def test_graphs_of_calls_that_have_ended_are_freed(tmp_path):
    """TensorFlow's own callables of a session keep its graph for ever, with ours in it.

    Python's collector, off in the first step, need not find that of an evaluation during training.
    """
    graphs = []

    def model(features, labels, mode, params):
        graphs.append(weakref.ref(v1.get_default_graph()))
        return regression.model_fn(features, labels, mode, params)

    class Evaluate(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            made.evaluate(regression.ragged_dataset)
            assert not gc.isenabled() and len(graphs) == 2 and graphs[1]() is None

    made = build(tmp_path, model=model)
    made.train(dataset, hooks=[Evaluate()], max_steps=1)
    next(iter(made.predict(dataset)))
    gc.collect()
    assert [graph() for graph in graphs] == [None] * 3


def test_errors_of_the_input_are_those_of_the_host(tmp_path):
    def bad_input():
        return dataset().map(lambda x, y: (x, tf.debugging.check_numerics(y / 0.0, "labels")))

    messages = []
    for use_cs in (False, True):
        with pytest.raises(tf.errors.InvalidArgumentError, match="labels") as found:
            build(tmp_path / str(use_cs)).train(bad_input, steps=2, use_cs=use_cs)
        # TensorFlow numbers the datasets of a process.
        messages.append(re.sub(r"Dataset:\d+", "Dataset", found.value.message))
    assert messages[0] == messages[1]


class RunWithFeeds(tf.estimator.SessionRunHook):
    """Runs fetches of its own after every step, with tensors of the model fed."""

    def __init__(self, feeds):
        self.feeds, self.found = feeds, []

    def after_run(self, run_context, run_values):
        fetches = {"cost": "cost:0", "scores": ["scores:0", v1.train.get_global_step()]}
        for feed in self.feeds:
            self.found.append(run_context.session.run(fetches, feed))


def with_table(features, labels, mode, params):
    """The regression model with a table, which a gather reads."""
    table = v1.get_variable("table", initializer=np.ones([2, 3], np.float32))
    ids = tf.cast(features[:, 0] > 0, tf.int32)
    with tf.control_dependencies([ids]):
        found = tf.nn.embedding_lookup(table, ids)
    return regression.model_fn(features * found, labels, mode, params)


@pytest.mark.parametrize("model", [regression.model_fn, with_table])
def test_a_run_with_feeds_answers_as_on_the_host_and_takes_no_batch_of_training(tmp_path, model):
    features, labels = np.ones([2, 3], np.float32), np.ones([2], np.float32)
    iterator, other = "IteratorGetNext:0", "IteratorGetNext:1"
    feeds = [{iterator: features, other: labels}, {"hidden:0": features[:, :2], other: labels}]
    hooks = [RunWithFeeds(feeds), RunWithFeeds(feeds)]
    for use_cs, hook in zip((False, True), hooks):
        made = build(tmp_path / str(use_cs), model=model)
        made.train(ragged, hooks=[hook], max_steps=2, use_cs=use_cs)
    assert_close(hooks[1].found, hooks[0].found)
    host, wafer = (regression.variables_of(tmp_path / str(use_cs)) for use_cs in (False, True))
    regression.assert_equal(host, wafer, rtol=1e-4)


def ragged():
    return regression.ragged_dataset().repeat()


class Feed(tf.estimator.SessionRunHook):
    """Feeds a tensor in every run, and fetches the loss."""

    def __init__(self, name, value):
        self.feed, self.seen = {name: value}, []

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs("cost:0", self.feed)

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)


@pytest.mark.parametrize(
    "name, shape", [("hidden:0", [4, 2]), ("gradients/cost_grad/truediv:0", [4])]
)
def test_a_feed_that_a_step_would_ignore_is_refused_by_name(tmp_path, name, shape):
    message = (
        f"feed_dict: must not contain a tensor that the wafer computes. Received: {name!r}. Make "
        "it tf.compat.v1.placeholder_with_default, or use use_cs=False."
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        hook = Feed(name, np.ones(shape, np.float32))
        build(tmp_path).train(dataset, hooks=[hook], max_steps=1)


def test_an_evaluation_hook_that_feeds_the_features_gets_what_the_host_gives(tmp_path):
    build(tmp_path).train(dataset, max_steps=1)
    hooks = [Feed("IteratorGetNext:0", np.ones([4, 3], np.float32)) for _ in range(2)]
    host, wafer = (
        build(tmp_path).evaluate(dataset, steps=2, hooks=[hook], use_cs=use_cs)
        for use_cs, hook in zip((False, True), hooks)
    )
    assert_close(wafer, host)
    assert_close(hooks[1].seen, hooks[0].seen)


def assert_close(made, wanted):
    for one, other in zip(tf.nest.flatten(made), tf.nest.flatten(wanted)):
        np.testing.assert_allclose(one, other, rtol=1e-4)


class FeedRate(tf.estimator.SessionRunHook):
    """Feeds the rate at all steps but the third, and fetches it."""

    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        feed = {"rate:0": [0.3, 0.02, 0.0, 0.1][len(self.seen)]}
        fed = {} if len(self.seen) == 2 else {"feed_dict": feed}
        return tf.estimator.SessionRunArgs("rate:0", **fed)

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)


@pytest.mark.parametrize("schedule", [False, True])
def test_a_constant_or_a_schedule_that_a_hook_feeds_has_the_fed_value(tmp_path, schedule):
    def model(features, labels, mode, params):
        rate = tf.constant(0.2, name="rate")
        if schedule:
            step = v1.train.get_global_step()
            rate = tf.identity(v1.train.exponential_decay(0.2, step, 1, 0.5), name="rate")
        return regression.model_fn(features, labels, mode, {"rate": rate})

    hooks = [FeedRate(), FeedRate()]
    for use_cs, hook in zip((False, True), hooks):
        made = build(tmp_path / str(use_cs), model=model)
        made.train(dataset, hooks=[hook], max_steps=4, use_cs=use_cs)
    np.testing.assert_allclose(hooks[1].seen, hooks[0].seen, rtol=1e-6)
    host, wafer = (regression.variables_of(tmp_path / str(use_cs)) for use_cs in (False, True))
    regression.assert_equal(host, wafer, rtol=1e-4)


class InitializeMissing(tf.estimator.SessionRunHook):
    """Initializes the variables that the session reports as uninitialized."""

    def begin(self):
        variables = v1.global_variables()
        self.names = v1.report_uninitialized_variables(variables)
        self.flags = [v1.is_variable_initialized(variable) for variable in variables]
        self.initializers = {v.op.name: v.initializer for v in variables}
        self.found = []

    def after_create_session(self, session, coord):
        names, flags = session.run(self.names), session.run(self.flags)
        self.found += [list(names), all(flags)]
        session.run([self.initializers[name.decode()] for name in names])

    def after_run(self, run_context, run_values):
        self.found += [list(value) for value in run_context.session.run([self.names, self.flags])]


def test_a_hook_sees_the_variables_as_initialized(tmp_path):
    hook = InitializeMissing()
    build(tmp_path).train(dataset, hooks=[hook], max_steps=1)
    assert hook.found == [[], True, [], [True] * len(hook.flags)]
