"""Compiling says what a real system would do; graph and sizes give the same workload."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.compiler.workload import workload_of_program
from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.errors import CapacityError
from cerebras_tf.estimator.prediction import predict_program
from cerebras_tf.report.record import read_record
from cerebras_tf.wafer.activations import plan_activations
from cerebras_tf.wafer.prediction import one_line
from cerebras_tf.wafer.streaming import predict_streaming
from cerebras_tf.wafer.system import load_system
from cerebras_tf.wafer.transformer import transformer
from tests.estimator.regression import build, dataset

pytestmark = pytest.mark.tf
CONFIG = "params_gpt3_small_wikitext2.yaml"


def compiled(tmp_path):
    """(params, unfitted program) of a model of the zoo."""
    import tensorflow as tf

    from modelzoo.common.config.params import load_params
    from modelzoo.common.train.estimator import make_estimator
    from modelzoo.gpt3 import data, model
    from tests.modelzoo.configs import CONFIGS

    params = load_params(CONFIGS / CONFIG, {"runconfig.model_dir": str(tmp_path)})
    estimator = make_estimator(model.model_fn, params, True)
    programs = []
    original = type(estimator)._predicted

    def kept(self, program, call):
        programs.append(program)
        return original(self, program, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(estimator), "_predicted", kept)
        estimator.compile(data.INPUTS.blank, validate_only=True)
    tf.compat.v1.reset_default_graph()
    return params, programs[0]


def test_a_graph_and_its_sizes_are_the_same_workload(tmp_path):
    params, program = compiled(tmp_path)
    model, given = params.model, params.train_input
    batch, length = given.batch_size, given.max_sequence_length
    sized = transformer(
        "sizes",
        batch,
        model.hidden_size,
        model.num_hidden_layers,
        model.num_heads,
        model.filter_size,
        given.vocab_size,
        length,
    )
    graph = workload_of_program(program, "graph", batch, batch * length)
    assert graph.flops == sized.flops
    # Position embeddings may be longer than a sequence.
    assert graph.parameters == pytest.approx(sized.parameters, rel=0.01)
    assert graph.state_elements == pytest.approx(2 * graph.parameters, rel=0.01)
    assert graph.period == sized.period == 2
    machine = load_system()
    both = [predict_streaming(work, machine) for work in (graph, sized)]
    assert both[0].wafer_s == pytest.approx(both[1].wafer_s, rel=0.1)
    many = [plan_activations(w.with_batch(100 * batch), machine) for w in (graph, sized)]
    assert many[0].kept_bytes == pytest.approx(many[1].kept_bytes, rel=0.15)


def test_compiling_tells_what_a_system_would_do(tmp_path, caplog):
    import logging

    import tensorflow as tf

    tf.get_logger().setLevel(logging.INFO)
    with caplog.at_level(logging.INFO, "tensorflow"):
        tf.get_logger().propagate = True
        build(tmp_path).compile(dataset, validate_only=True)
    tf.get_logger().propagate = False
    assert "prediction for a CS-2 with release R1.7.1, weight_streaming" in caplog.text
    assert "bound by the host's loop" in caplog.text


@pytest.fixture
def predicted(monkeypatch):
    """What was predicted since the test began."""
    found = []
    monkeypatch.setattr(
        "cerebras_tf.estimator.estimator.predict_program",
        lambda *given: found.append(predict_program(*given)) or found[-1],
    )
    return found


def test_a_system_for_each_batch_that_one_wafer_takes_in_turn(tmp_path, monkeypatch, predicted):
    for num_csx in (1, 4):
        made = build(tmp_path, num_csx=num_csx)
        made.compile(dataset, validate_only=True)
    one, four = predicted
    assert (one.num_csx, four.num_csx) == (1, 4)
    assert four.global_batch == 4 * one.global_batch
    assert four.steps_per_s == one.steps_per_s
    monkeypatch.setenv(EXECUTION_MODE.name, "pipeline")
    made.compile(dataset, validate_only=True)
    assert (predicted[2].num_csx, predicted[2].micro_batches) == (1, 4)  # of one system, in turn
    assert predicted[2].global_batch == four.global_batch


def test_a_step_of_several_batches_has_the_time_and_samples_of_all(tmp_path, predicted):
    for steps in (1, 4):
        made = build(tmp_path / f"{steps}", batches_per_step=steps)
        made.compile(dataset)
    made.compile(dataset, mode="eval")
    one, four, evaluation = predicted

    def page(steps):
        return (tmp_path / f"{steps}" / "compiled" / "report.html").read_text()

    assert four.global_batch == 4 * one.global_batch
    assert four.step_s == pytest.approx(4 * one.step_s)
    assert four.samples_per_s == pytest.approx(one.samples_per_s)
    assert four.utilisation == pytest.approx(one.utilisation)
    assert "16 samples in 4 micro-batches" in one_line(four)
    assert evaluation.micro_batches == 1
    record = read_record(str(tmp_path / "4"))
    assert (record["micro_batches"], record["global_batch"]) == (4, 16)
    operations = [
        int(re.search(r"([\d,]+) floating-point", page(n)).group(1).replace(",", ""))
        for n in (1, 4)
    ]
    # Adding gradients costs a little.
    assert 4 * operations[0] <= operations[1] < 4.5 * operations[0]
    assert "4 micro-batches per step" in page(4)


def test_sums_of_gradients_are_state_and_no_weights(tmp_path, predicted):
    import tensorflow as tf

    from cerebras_tf import CerebrasEstimator

    def summing(features, labels, mode):
        weight = tf.compat.v1.get_variable("weight", [3, 5])
        total = tf.compat.v1.get_variable("total", [3, 5], trainable=False)
        loss = tf.reduce_mean(tf.square(tf.matmul(features, weight) - labels[:, None]))
        added = total.assign_add(tf.gradients(loss, weight)[0])
        step = tf.compat.v1.train.get_global_step().assign_add(1)
        with tf.control_dependencies([step]):
            train_op = weight.assign_sub(0.1 * added).op
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    CerebrasEstimator(summing, str(tmp_path)).compile(dataset, validate_only=True)
    assert (predicted[0].workload.parameters, predicted[0].workload.state_elements) == (15, 15)


def test_a_program_that_does_not_fit_here_is_written_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("cerebras_tf.runtime.capacity.available_bytes", lambda: 100)
    made = build(tmp_path)
    assert made.compile(dataset) is not None
    report = (tmp_path / "compiled" / "report.html").read_text(encoding="utf-8")
    assert "it does not fit on this computer: this model needs" in report
    with pytest.raises(CapacityError, match="this model needs"):
        made.compile(dataset, save=False)
    with pytest.raises(CapacityError, match="this model needs"):
        made.train(dataset, max_steps=1)


@pytest.mark.parametrize(
    "mode, said",
    [
        ("pipeline", r"multireplica: (\d+ replicas of the model share|one replica is used)"),
        ("weight_streaming", "multireplica: available only in pipelined mode"),
    ],
)
def test_training_tells_how_many_replicas_share_the_batch(
    mode, said, tmp_path, monkeypatch, caplog
):
    import tensorflow as tf

    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    losses = []
    for multireplica in (True, False):
        given = {"multireplica": multireplica, "log_step_count_steps": 1}
        with caplog.at_level("INFO", "tensorflow"):
            build(tmp_path / str(multireplica), **given).train(dataset, steps=2)
        losses.append(re.findall(r"Loss for final step: (\S+)\.", caplog.text)[-1])
    # Handlers that other tests have added repeat lines.
    assert len({line for line in caplog.text.splitlines() if re.search(said, line)}) == 1
    assert losses[0] == losses[1]
