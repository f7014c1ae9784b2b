"""Training within `wafer_memory_gb`: the same losses and weights, in the memory that is allowed."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.compiler import spilling
from cerebras_tf.compiler.fit_activations import Fitting
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import BatchCapacityError, CapacityError
from cerebras_tf.estimator import estimator
from cerebras_tf.frontend import activation_budget
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime import capacity
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.streaming_plan import plan_streaming
from cerebras_tf.swarmx.swarm import Alone
from tests.estimator.regression import assert_equal, build, dataset, models_built, variables_of
from tests.messages import names
from tests.steps import residual_step

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
WIDTH, DEPTH, ROWS = 16, 5, 256


def deep(features, labels, mode, params):
    """Residual layers with dropout."""
    random = np.random.default_rng(0)

    def weight(name, *shape):
        start = 0.1 * random.standard_normal(shape).astype(np.float32)
        return v1.get_variable(name, initializer=start)

    stream = features
    for number in range(DEPTH):
        inner = tf.matmul(stream, weight(f"up_{number}", WIDTH, 4 * WIDTH))
        down = tf.matmul(tf.nn.gelu(inner, True), weight(f"down_{number}", 4 * WIDTH, WIDTH))
        stream = stream + tf.nn.dropout(down, rate=0.1, seed=number)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(stream, -1) - labels), name="cost")
    step = v1.train.get_global_step()
    train_op = v1.train.MomentumOptimizer(0.01, 0.9).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def batches(sizes, known=None):
    """Batches of these numbers of rows; the sizes are not known beforehand, or are `known`."""

    def input_fn():
        def generate():
            random = np.random.default_rng(3)
            for size in sizes:
                rows = random.standard_normal((size, WIDTH)).astype(np.float32)
                yield rows, rows.sum(-1)

        types = (tf.TensorSpec([known, WIDTH]), tf.TensorSpec([known]))
        return tf.data.Dataset.from_generator(generate, output_signature=types)

    return input_fn


class Losses(tf.estimator.SessionRunHook):
    """Keeps the loss of every step."""

    def __init__(self):
        self.found = []

    def before_run(self, context):
        return tf.estimator.SessionRunArgs("cost:0")

    def after_run(self, context, values):
        self.found.append(values.results)


def trained(folder, sizes, known=None, **config):
    """(losses, variables, the step) of a run over batches of these sizes."""
    losses = Losses()
    with models_built() as models:
        build(folder, model=deep, **config).train(batches(sizes, known), hooks=[losses])
    return losses.found, variables_of(folder), models[-1].step


def activation_bytes(step):
    """The most that activations and scratch memory took, measured."""
    return step.session.peak_bytes - step.store.total_resident_bytes


@pytest.fixture
def said(caplog):
    """What TensorFlow's logger was told, joined."""
    with caplog.at_level("INFO", logger="tensorflow"):
        yield lambda: "\n".join(record.getMessage() for record in caplog.records)


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """A run without a setting."""
    return trained(tmp_path_factory.mktemp("free"), [ROWS] * 3)


def test_training_within_a_budget_gives_equal_bits_in_less_memory(tmp_path, free, said):
    losses, variables, session = free
    needed = activation_bytes(session)
    budget = 0.6 * needed
    found = trained(tmp_path, [ROWS] * 3, wafer_memory_gb=budget / 1e9)
    assert len(found[0]) == 3 and found[0] == losses
    assert_equal(found[1], variables, rtol=0)
    assert activation_bytes(found[2]) <= budget
    assert f"do not fit in {budget / 1e9:.3g} GB: " in said()
    assert "layers are recomputed" in said()


def test_activations_spill_to_the_disk_of_the_weights(tmp_path, free, said, monkeypatch):
    """A disk that costs nothing is used before anything is recomputed."""
    losses, variables, session = free
    monkeypatch.setattr(spilling, "_LEAST_BYTES", 0)
    monkeypatch.setattr(activation_budget, "measured_disk_speeds", lambda folder: (1e18, 1e18))
    slow = Speeds(flops_per_s=1e3, bytes_per_s=1e9)
    monkeypatch.setattr(activation_budget, "measured_speeds", lambda rounded: slow)
    budget = 0.6 * activation_bytes(session)
    on_files = {"memoryx_dir": str(tmp_path / "store"), "memoryx_ram_gb": 0.0006}
    given = {**on_files, "wafer_memory_gb": budget / 1e9}
    found = trained(tmp_path / "model", [ROWS] * 3, known=ROWS, **given)
    assert found[0] == losses
    assert_equal(found[1], {name: variables[name] for name in found[1]}, rtol=0)
    assert len(found[1]) > 2 * DEPTH
    assert found[2].program.arena_bytes + found[2].program.scratch_bytes <= budget
    assert found[2].program.staged and "layers spill " in said()
    assert "recomputed" not in said()
    assert not list((tmp_path / "store").iterdir())


def test_less_than_it_takes_at_least_is_refused_with_what_would_do(tmp_path, free):
    with pytest.raises(CapacityError, match=r"^wafer_memory_gb: .* Received: 1e-06; ") as raised:
        trained(tmp_path, [ROWS], wafer_memory_gb=1e-6)
    told = re.search(
        r"with recomputation, [\d.e-]+ GB too much. Set it to ([\d.e-]+),", str(raised.value)
    )
    assert told is not None
    _, _, session = trained(tmp_path / "told", [ROWS], wafer_memory_gb=float(told[1]))
    assert activation_bytes(session) <= float(told[1]) * 1e9


def test_what_does_not_fit_names_the_settings_that_were_tried():
    fitting = Fitting((), 9_000_000_000, 5_000_000_000, 2_000_000_000, 1, 3_000_000_000)
    text = str(activation_budget.does_not_fit(fitting, 2))
    assert names(text, "wafer_memory_gb", "Received: 2;", "9 GB", "5 GB", "3 GB", "5.02", "3.01")


def test_a_larger_batch_that_does_not_fit_is_computed_twice_from_then_on(tmp_path, free):
    sizes = [ROWS // 2, ROWS, ROWS // 4]
    losses, variables, session = trained(tmp_path / "free", sizes)
    budget = 0.6 * activation_bytes(session)
    found = trained(tmp_path / "bounded", sizes, wafer_memory_gb=budget / 1e9)
    assert found[0] == losses
    assert_equal(found[1], variables, rtol=0)
    assert activation_bytes(found[2]) <= budget


def test_by_default_it_is_what_the_machine_has_free(tmp_path, free, monkeypatch, said):
    losses, variables, session = free
    # Beside the variables, which are there when shapes are first known.
    allowed = int(0.7 * activation_bytes(session))
    monkeypatch.setattr(capacity, "available_bytes", lambda: allowed)
    found = trained(tmp_path, [ROWS] * 3)
    assert found[0] == losses
    assert activation_bytes(found[2]) <= 0.9 * allowed
    assert "recomputed" in said()


def test_nothing_is_said_of_what_fits_nor_of_an_evaluation(tmp_path, said):
    """An evaluation has no backward pass to compute anything twice for."""
    build(tmp_path, wafer_memory_gb=1.0).train(dataset, max_steps=1)
    build(tmp_path, wafer_memory_gb=1e-9).evaluate(dataset, steps=1)
    assert "do not fit" not in said()


def test_a_wafer_of_several_keeps_its_disk_busy_with_its_own_part(tmp_path):
    step = residual_step()
    store = FileStore(step.specs.values(), FileDisk(str(tmp_path), 37000))
    budget = activation_budget.ActivationBudget(store, CpuBackend(), None, True, Alone(), int)
    budget._disk_speeds = lambda: (1.0, 1.0)
    specs = list(step.specs.values())
    program = compile_step(residual_step(), Options(True, wafers=2))
    moved = plan_streaming(program, specs, 37000, CpuBackend(), 0)
    wanted = moved.bytes_read + moved.bytes_written
    assert budget._spill_space(program).busy_s == wanted > 0
    store.close()


def refusal(folder, available_gb, model=deep):
    made = build(folder, model=model, wafer_memory_gb=available_gb)
    with pytest.raises(BatchCapacityError) as raised:
        made.train(batches([ROWS], ROWS))
    with pytest.raises(BatchCapacityError) as validated:
        made.compile(batches([ROWS], ROWS), validate_only=True)
    assert str(validated.value) == str(raised.value)
    return raised.value


@pytest.fixture(scope="module")
def least(tmp_path_factory):
    """Bytes that the batch needs at least."""
    return refusal(tmp_path_factory.mktemp("least"), 1e-6).needed_bytes


def test_a_refusal_names_micro_batches_and_a_batch_size_that_fit(tmp_path, least):
    limit = {"wafer_memory_gb": 0.4 * least / 1e9}
    told = re.search(
        r"micro_batches: (\d+) \((\S+) GB\) or a batch size of (\d+) ",
        str(refusal(tmp_path, limit["wafer_memory_gb"])),
    )
    parts, needed, rows = int(told[1]), float(told[2]), int(told[3])
    assert 2 <= parts < ROWS and needed <= limit["wafer_memory_gb"] * 1.01
    _, _, session = trained(tmp_path / "a", [ROWS], known=ROWS, micro_batches=parts, **limit)
    assert activation_bytes(session) <= 1e9 * limit["wafer_memory_gb"]
    trained(tmp_path / "b", [rows], known=rows, **limit)


def test_the_computers_own_memory_counts_too(tmp_path, least, monkeypatch):
    """Validation logs it, and refuses nothing."""
    state = 2 * DEPTH * 2 * 4 * WIDTH**2 * 4  # weights and momentum
    lines: list[str] = []
    monkeypatch.setattr(estimator, "log_info", lambda text, *given: lines.append(text % given))
    monkeypatch.setattr(capacity, "available_bytes", lambda: state + int(0.8 * least))
    build(tmp_path, model=deep).compile(batches([ROWS], ROWS), validate_only=True)
    (line,) = [line for line in lines if "it does not fit on this computer" in line]
    assert "a batch size of" in line
    monkeypatch.setattr(capacity, "available_bytes", lambda: state // 2)
    build(tmp_path, model=deep).compile(batches([ROWS], ROWS), validate_only=True)
    assert "does not fit" in lines[-1] and "a batch size of" not in lines[-1]
