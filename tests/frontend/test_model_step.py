"""A second front end: a step built by hand with ops.Builder, trained without TensorFlow."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.errors import BatchCapacityError, CapacityError, DataError
from cerebras_tf.frontend.front_end import Feature
from cerebras_tf.frontend.micro_batches import MicroBatches
from cerebras_tf.frontend.model_step import ModelStep, RunSettings
from cerebras_tf.frontend.program_cache import ProgramCache
from cerebras_tf.ir import Graph, StepGraph, TensorType, Variable
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.ops import Builder

RATE, WEIGHT = 0.1, Variable("weight", TensorType("float32", (3, 1)), trainable=True)


class LinearRegression:
    """Mean squared error of x @ weight, trained by gradient descent."""

    features = (Feature("x", "float32", (None, 3)), Feature("y", "float32", (None, 1)))
    global_step, loss, trains, has_fallback = "step", "loss", True, False
    results = {"loss": TensorType("float32", ())}
    captures = 0

    def capture(self, types, results, updates, fallback=False):
        self.captures += 1
        graph = Graph("linear")
        b, step = Builder(graph), StepGraph(graph)
        x, y = (graph.add_input(name, types[name]) for name in ("x", "y"))
        weight = graph.add_input("weight", WEIGHT.type)
        step.features, step.variables = {"x": x, "y": y}, {"weight": weight}
        step.specs = {"weight": WEIGHT}
        scores = b.op("matmul", x, weight, transpose_a=False, transpose_b=False)
        loss = b.op("mean", b.op("squared_difference", scores, y), axes=(0, 1), keepdims=False)
        step.results = {"loss": loss}
        if updates:
            (slope,) = b.multi("gradient", loss, weight, ys=1, dys=(False,), xs=1)
            slope = b.op("parameter_gradient", slope, variable="weight")
            step.updates = {"weight": b.op("sub", weight, b.op("mul", slope, RATE))}
        return step

    def digest(self, results, updates):
        return f"linear {updates}"

    def seed(self):
        return 1


def batch(rows, seed=0):
    x = np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)
    return {"x": x, "y": x @ np.array([[1.0], [2.0], [3.0]], np.float32)}


def weight_of(store):
    (weight,) = store.acquire(["weight"])
    store.release(["weight"])
    return weight.copy()


def made(model=None, **settings):
    store = MemoryStore([WEIGHT])
    store.acquire(["weight"], fresh=True)[0][...] = 0.0
    store.release(["weight"], ["weight"])
    step = ModelStep(model or LinearRegression(), store, Options(), RunSettings(**settings))
    step.want(["loss"])
    return step, store


def test_a_hand_built_model_trains_and_one_program_serves_all_batch_sizes():
    model, weight = LinearRegression(), np.zeros((3, 1))
    step, store = made(model)
    for number, rows in enumerate([8, 4, 16, 8]):
        given = batch(rows, number)
        error = given["x"] @ weight - given["y"]
        step.run(given)
        np.testing.assert_allclose(step.results["loss"], np.mean(error**2), rtol=1e-5)
        weight -= RATE * 2 / rows * given["x"].T @ error
    np.testing.assert_allclose(weight_of(store), weight, rtol=1e-5)
    assert model.captures == 1


def test_a_step_that_does_not_update_leaves_the_variables():
    step, store = made()
    step.want(["loss"], updates=False)
    step.run(batch(4))
    assert not weight_of(store).any()


def test_a_saved_program_is_found_and_not_captured(tmp_path):
    cache = ProgramCache(str(tmp_path), "train", print)
    types = {name: TensorType("float32", array.shape) for name, array in batch(4).items()}
    step, _ = made()
    step.compile_to_save(types)
    assert step.source.save(cache).parent == tmp_path
    model = LinearRegression()
    again, store = made(model)
    again.source.cache = cache
    again.run(batch(4))
    assert model.captures == 0 and weight_of(store).any()


def test_a_feature_of_another_shape_is_refused():
    step, _ = made()
    with pytest.raises(DataError, match=r"feature x: .* \(None, 3\). Received: \[4, 2\]"):
        step.run({"x": np.zeros((4, 2), np.float32), "y": np.zeros((4, 1), np.float32)})


def test_activations_above_the_limit_are_refused():
    step, _ = made(memory_gb=1e-9)
    with pytest.raises(CapacityError, match="wafer_memory_gb: .* Received: 1e-09"):
        step.run(batch(64))


@pytest.mark.parametrize("has_batch", [True, False])
def test_wafers_agree_on_the_end_of_the_data(has_batch):
    lines = []
    step, _ = made(log=lines.append)
    step.swarm = SimpleNamespace(size=3, gather=lambda _: np.array([0, 1, 1]))
    if has_batch:
        with pytest.raises(StopIteration):
            step.agree(True)
    else:
        step.agree(False)
    (line,) = lines
    assert "wafer 1, 2" in line and "wafer 0" in line and "1 dropped" in line


class Tall(LinearRegression):
    """With a known batch, a hidden value of many columns, and a loss that is a mean or a sum."""

    features = (Feature("x", "float32", (64, 3)), Feature("y", "float32", (64, 1)))

    def __init__(self, reduce):
        self.reduce = reduce

    def capture(self, types, results, updates, fallback=False):
        graph = Graph("tall")
        b, step = Builder(graph), StepGraph(graph)
        x, y = (graph.add_input(name, types[name]) for name in ("x", "y"))
        weight = graph.add_input("weight", WEIGHT.type)
        step.features, step.variables = {"x": x, "y": y}, {"weight": weight}
        step.specs = {"weight": WEIGHT}
        scores = b.op("matmul", x, weight, transpose_a=False, transpose_b=False)
        wide = b.op("exp", b.op("mul", b.op("sub", scores, y), np.ones((1, 256), np.float32)))
        loss = b.op(self.reduce, wide, axes=(0, 1), keepdims=False)
        step.results = {"loss": loss}
        (slope,) = b.multi("gradient", loss, weight, ys=1, dys=(False,), xs=1)
        slope = b.op("parameter_gradient", slope, variable="weight")
        step.updates = {"weight": b.op("sub", weight, slope)}
        return step


@pytest.mark.parametrize("reduce, can_split", [("mean", True), ("mean", False), ("sum", True)])
def test_only_a_model_that_can_be_split_is_advised_micro_batches(reduce, can_split):
    step, _ = made(Tall(reduce), memory_gb=1e-6)
    with pytest.raises(BatchCapacityError) as least:
        step.prepare()
    step, _ = made(Tall(reduce), memory_gb=0.8e-9 * least.value.needed_bytes)
    step.source.can_split = lambda: can_split
    with pytest.raises(BatchCapacityError) as raised:
        step.prepare()
    splits = reduce == "mean" and can_split
    assert ("micro_batches: 2" in str(raised.value)) is splits
    assert "a batch size of 32" in str(raised.value)


def test_a_step_of_several_batches_is_advised_smaller_batches_only():
    def batches(gigabytes):
        settings = {"micro_batches": MicroBatches(2, None, {"x": "x", "y": "y"})}
        step, _ = made(Tall("mean"), memory_gb=gigabytes, **settings)
        with pytest.raises(BatchCapacityError) as raised:
            step.prepare()
        return raised.value

    found = str(batches(0.8e-9 * batches(1e-6).needed_bytes))
    assert "micro_batches: " not in found and "a batch size of 32" in found


@pytest.mark.parametrize("fits", [True, False])
def test_programs_that_would_not_run_here_are_not_compiled(tmp_path, fits):
    lines = []
    model, split = Tall("mean"), MicroBatches(3, None, {"x": "x", "y": "y"})
    step, _ = made(model, micro_batches=split, log=lines.append)
    if not fits:
        step.session.capacity_error = lambda program: BatchCapacityError("", 2, 1)
    program = step.compile_to_save(step.static_types())
    written = step.source.save(ProgramCache(str(tmp_path), "train", print))
    programs = list(tmp_path.glob("*.zip"))
    assert len(programs) == (3 if fits else 1) and written in programs
    assert (lines == []) is fits and program is step.source.program
    assert "sub" in written.with_suffix(".txt").read_text("utf-8")
