"""Training with a sparsifier, against TensorFlow with masks applied by hand."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator.prediction import predict_program as predict
from cerebras_tf.frontend import program_source
from cerebras_tf.memoryx.sparsifier import SPARSIFIER_MAP, BaseSparsifier, TopKSparsifier
from cerebras_tf.memoryx.sparsity import is_pruned
from cerebras_tf.report.page import report_page
from tests.estimator.regression import assert_equal, build, data, dataset, variables_of

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
WEIGHTS = ("layer/kernel", "output")
WIDTH, STEPS, LEVEL = 8, 6, 0.5


def model_fn(features, labels, mode, params):
    """Two layers without a bias, trained by AdamW-like decay, Adam and clipping by the norm."""
    random = np.random.default_rng(0)
    with v1.variable_scope("layer"):
        kernel = v1.get_variable("kernel", initializer=random.standard_normal((3, WIDTH), "f"))
    output = v1.get_variable("output", initializer=random.standard_normal((WIDTH, 4), "f"))
    bias = v1.get_variable("bias", initializer=np.zeros(4, "f"))
    scores = tf.reduce_sum(tf.matmul(tf.tanh(features @ kernel), output) + bias, -1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"scores": scores})
    loss = tf.reduce_mean(tf.square(scores - labels))
    optimizer = v1.train.AdamOptimizer(0.05)
    (gradients, variables) = zip(*optimizer.compute_gradients(loss))
    if "masks" in params:  # the oracle: TensorFlow multiplies by hand
        masks = params["masks"]
        gradients = [g * masks[v.op.name] for g, v in zip(gradients, variables)]
    gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
    step = v1.train.get_or_create_global_step()
    with tf.control_dependencies(gradients):  # they read the variables before the decay
        decay = [v1.assign(v, v * 0.999) for v in variables]
    with tf.control_dependencies(decay):
        train = optimizer.apply_gradients(zip(gradients, variables), step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def made(folder, **settings):
    return build(folder, model=model_fn, **settings)


def sparsifier(kind="topk", **settings):
    return SPARSIFIER_MAP[kind](1, LEVEL, **settings)


class MaskFirst(tf.estimator.SessionRunHook):
    """Masks the oracle's weights before the first step."""

    def __init__(self, masks):
        self.masks = masks

    def begin(self):
        variables = {v.op.name: v for v in v1.trainable_variables()}
        self.op = [v1.assign(variables[n], variables[n] * m) for n, m in self.masks.items()]

    def after_create_session(self, session, coord):
        session.run(self.op)


def masks_of(variables):
    found = {name: (~is_pruned(variables[name])).astype("f") for name in WEIGHTS}
    return {**found, "bias": np.ones(4, "f")}


@pytest.mark.parametrize("kind", sorted(SPARSIFIER_MAP))
def test_training_is_tensorflow_s_with_masks_by_hand(tmp_path, kind):
    made(tmp_path / "wafer").train(dataset, max_steps=STEPS, sparsifier=sparsifier(kind))
    found = variables_of(tmp_path / "wafer")
    masks = masks_of(found)
    for name in WEIGHTS:
        assert (masks[name] == 0).mean() == LEVEL, name
        for slot in ("Adam", "Adam_1"):
            assert not found[f"{name}/{slot}"][masks[name] == 0].any()
    host = build(tmp_path / "host", {"masks": masks}, model_fn, use_cs=False)
    host.train(dataset, max_steps=STEPS, hooks=[MaskFirst(masks)])
    assert_equal(variables_of(tmp_path / "host"), found, 2e-5)


@pytest.mark.parametrize("kind, files", [("topk", False), ("constant", True)])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, kind, files):
    for folder, ends in (("whole", [STEPS]), ("parts", [2, STEPS])):
        place = tmp_path / folder
        on_files = {"memoryx_dir": str(place / "store"), "memoryx_ram_gb": 0.1} if files else {}
        for end in ends:
            estimator = made(place, save_checkpoints_steps=2, **on_files)
            read = functools.partial(dataset, 2 if end != ends[0] else 0)
            estimator.train(read, max_steps=end, sparsifier=sparsifier(kind))
    assert_equal(variables_of(tmp_path / "whole"), variables_of(tmp_path / "parts"), 0)


def test_masks_are_made_of_what_was_trained_before_and_dense_training_may_follow(tmp_path):
    made(tmp_path).train(dataset, max_steps=2)
    dense = variables_of(tmp_path)
    made(tmp_path).train(dataset, max_steps=4, sparsifier=sparsifier())
    sparse = variables_of(tmp_path)
    for name in WEIGHTS:
        pruned = is_pruned(sparse[name])
        assert np.abs(dense[name][pruned]).max() <= np.abs(dense[name][~pruned]).min()
        assert not sparse[f"{name}/Adam"][pruned].any()
    on_host, on_wafer = (
        next(iter(made(tmp_path).predict(dataset, use_cs=use_cs)))["scores"]
        for use_cs in (False, True)
    )
    np.testing.assert_allclose(on_host, on_wafer, rtol=1e-5)
    made(tmp_path).train(dataset, max_steps=6)
    # Units stay that were pruned on both sides: they have no gradient.
    assert is_pruned(variables_of(tmp_path)["output"]).mean() < LEVEL / 2


def test_training_with_evaluations_keeps_the_masks(tmp_path):
    features, labels = data()
    made(tmp_path).train_and_evaluate(
        tf.estimator.TrainSpec(dataset, max_steps=4),
        tf.estimator.EvalSpec(lambda: tf.data.Dataset.from_tensors((features[0], labels[0]))),
        sparsifier=sparsifier("checkerboard"),
    )
    assert is_pruned(variables_of(tmp_path)["output"]).mean() == LEVEL


def test_a_program_compiled_for_one_sparsity_serves_no_other(tmp_path, monkeypatch):
    one, other = sparsifier(), TopKSparsifier(1, {"output": 0.5})
    made(tmp_path).compile(dataset, sparsifier=one)
    compiled, whole = [], program_source.compile_layers
    monkeypatch.setattr(
        program_source, "compile_layers", lambda *given: (compiled.append(given), whole(*given))[1]
    )
    for given, found in ((one, True), (other, False), (None, False)):
        compiled.clear()
        made(tmp_path).train(dataset, steps=1, sparsifier=given)
        assert (not compiled) == found


def test_the_prediction_counts_the_weights_that_are_left(tmp_path, monkeypatch):
    work = []
    monkeypatch.setattr(
        "cerebras_tf.estimator.estimator.predict_program",
        lambda *given: work.append(predict(*given)) or work[-1],
    )
    for given in (None, TopKSparsifier(1, {"kernel": 0.75})):
        made(tmp_path).compile(dataset, validate_only=True, sparsifier=given)
    dense, sparse = (found.workload for found in work)
    assert dense.density == 1 and dense.flops > sparse.flops
    assert "Pruned weights take no cycle" in report_page(work[1], [], ())
    for one, two in zip(dense.layers, sparse.layers):
        for first, second in zip((*one.forward, *one.backward), (*two.forward, *two.backward)):
            of_kernel = {first.inputs, first.outputs} == {3, WIDTH}
            assert second.multiply_adds == first.multiply_adds * (0.25 if of_kernel else 1)
    assert work[1].wafer_s < work[0].wafer_s


class AnythingElse(BaseSparsifier):
    """A user's own: prunes the first output of every matrix, at step 0."""

    def apply_sparsity(self, step):
        return step == 0

    def get_masked_weights(self, step, weights_dict, sparse_val):
        found = dict(weights_dict)
        for name, weight in weights_dict.items():
            if weight.ndim == 2:
                found[name] = np.where(np.arange(weight.shape[1]) == 0, sparse_val, weight)
        return found


def test_a_user_s_own_sparsifier_is_asked_where_training_starts(tmp_path):
    for end in (2, 4):
        made(tmp_path).train(dataset, max_steps=end, sparsifier=AnythingElse())
        pruned = is_pruned(variables_of(tmp_path)["layer/kernel"])
        np.testing.assert_array_equal(pruned, np.broadcast_to(np.arange(WIDTH) == 0, (3, WIDTH)))


def test_what_cannot_be_sparse_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must have the methods .* Received: object without"):
        made(tmp_path).train(dataset, max_steps=1, sparsifier=object())
    with pytest.raises(ConfigError, match="sparsifier: .* Received: use_cs False"):
        made(tmp_path).train(dataset, max_steps=1, use_cs=False, sparsifier=sparsifier())
    with pytest.raises(ConfigError, match="every name must match a weight"):
        given = TopKSparsifier(1, {"no such": 0.5})
        made(tmp_path).train(dataset, max_steps=1, sparsifier=given)
    with pytest.raises(ConfigError, match="at step 0, where training starts"):
        given = AnythingElse()
        given.apply_sparsity = lambda step: False
        made(tmp_path).train(dataset, max_steps=1, sparsifier=given)
