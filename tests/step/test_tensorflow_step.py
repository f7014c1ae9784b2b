"""Checks how steps are compiled for the shapes and values that are asked for."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.errors import DataError
from cerebras_tf.frontend.program_source import CompilingSource
from cerebras_tf.ir import TensorType
from cerebras_tf.runtime.protocol import Request
from cerebras_tf.step.tensorflow_step import can_split
from tests.estimator import regression
from tests.estimator.regression import build, dataset

pytestmark = pytest.mark.tf


@pytest.fixture
def compiled(monkeypatch):
    """Feature types of every program compiled."""
    seen = []
    original = CompilingSource._compile_static

    def counted(self, target):
        seen.append([type.shape for type in target.types.values()])
        return original(self, target)

    monkeypatch.setattr(CompilingSource, "_compile_static", counted)
    return seen


@pytest.fixture
def made(monkeypatch):
    """Programs that sessions were given."""
    seen = []
    original = CompilingSource.compile

    def kept(self, request):
        seen.append(original(self, request))
        return seen[-1]

    monkeypatch.setattr(CompilingSource, "compile", kept)
    return seen


def test_one_program_serves_all_steps_of_one_shape(tmp_path, compiled):
    build(tmp_path).train(dataset, max_steps=4)
    assert compiled == [[(4, 3), (4,)]]


def test_a_new_length_needs_no_program_of_its_own(tmp_path, made):
    build(tmp_path).train(regression.ragged_dataset)
    (program,) = made
    assert [str(slot.type) for slot in program.slots[:2]] == [
        "float32[d0<=10<=?,3]",
        "float32[d0<=10<=?]",
    ]


def test_where_an_operation_needs_a_number_each_length_gets_a_program_of_its_own(
    tmp_path, compiled
):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        every_other = tf.reduce_sum(features[::2])
        return spec._replace(loss=spec.loss + 0.0 * every_other)

    build(tmp_path, model=model).train(regression.ragged_dataset)
    assert compiled == [[(10, 3), (10,)], [(8, 3), (8,)]]


def test_a_value_that_needs_a_number_costs_other_steps_no_program_for_all_lengths(tmp_path, made):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        hidden = tf.compat.v1.get_default_graph().get_tensor_by_name("hidden:0")
        tf.identity(hidden[::2], name="every_other")
        return spec

    class Look(tf.estimator.SessionRunHook):
        def before_run(self, run_context):
            return None if made else tf.estimator.SessionRunArgs("every_other:0")

    build(tmp_path, model=model).train(regression.ragged_dataset, hooks=[Look()])
    assert [len(program.symbols) for program in made] == [0, 1]


def test_an_error_of_ours_is_not_taken_for_a_size_that_must_be_a_number(tmp_path, monkeypatch):
    with regression.models_built() as models:
        build(tmp_path).train(regression.ragged_dataset, max_steps=1)

    def broken(self, target):
        raise TypeError("a bug")

    monkeypatch.setattr(CompilingSource, "_capture", broken)
    types = TensorType("float32", (10, 3)), TensorType("float32", (10,))
    fed = {tensor.name: type for tensor, type in zip(models[-1].fed, types)}
    with pytest.raises(TypeError, match="a bug"):
        models[-1].step.source.compile(Request(fed))


def test_features_that_do_not_fit_their_tensor_are_refused(tmp_path):
    with regression.models_built() as models:
        build(tmp_path).train(dataset, max_steps=1)
    with pytest.raises(DataError, match=r"shape must match \(4, 3\). Received: \[5, 3\]"):
        fed = zip(models[-1].fed, [(5, 3), (4,)])
        types = {tensor.name: TensorType("float32", shape) for tensor, shape in fed}
        models[-1].step.source.capture(models[-1].step.request(types))


def test_large_values_are_returned_only_when_asked_for(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        hidden = tf.compat.v1.get_default_graph().get_tensor_by_name("hidden:0")
        tf.compat.v1.summary.histogram("wide", tf.matmul(hidden, tf.ones([2, 8192]), name="wide"))
        return spec

    returned = []

    class Watch(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            returned.append("wide:0" in models[-1].step.program.results)

    made = build(tmp_path, model=model, save_summary_steps=3)
    with regression.models_built() as models:
        made.train(dataset, hooks=[Watch()], max_steps=3)
    assert returned == [True, False, True]


def test_a_step_that_is_skipped_does_not_count(tmp_path):
    """The training op raises the global step only where the loss is small."""

    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        step = tf.compat.v1.train.get_global_step()
        seen = tf.compat.v1.get_variable("seen", initializer=0, trainable=False)
        with tf.control_dependencies([tf.compat.v1.assign_add(seen, 1)]):
            even = tf.equal(seen.read_value() % 2, 0)
            grown = tf.compat.v1.assign_add(step, tf.cast(even, tf.int64))
        return spec._replace(train_op=grown.op)

    build(tmp_path, model=model).train(dataset, max_steps=3)
    found = regression.variables_of(tmp_path)
    np.testing.assert_array_equal([found["global_step"], found["seen"]], [3, 6])


@pytest.mark.parametrize(
    "labels, shifts, wanted",
    [([4, 1], False, True), ([4], True, False), ([2], False, False), ([None], False, False)],
)
def test_a_batch_can_be_split_if_rows_are_known_and_fed_as_they_are(labels, shifts, wanted):
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [4, 3])
        batch = {"x": x, "rate": tf.constant(0.1)}, tf.compat.v1.placeholder(tf.float32, labels)
        fed = [x + 1.0 if shifts else x, batch[1], tf.constant([1.0, 2.0])]
        assert can_split(batch, fed) is wanted
