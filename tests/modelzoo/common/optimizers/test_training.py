"""Optimizers, learning rates and loss scales against their formulas in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config import schema
from cerebras_tf.errors import GraphError
from modelzoo.common.config import sections
from modelzoo.common.optimizers.loss_scale import DynamicLossScale
from modelzoo.common.optimizers.schedules import learning_rate
from modelzoo.common.optimizers.training import make_train_op
from tests.messages import raises

STEPS = 4
RATE = 0.1


def settings(**keys):
    report = schema.Report("test")
    keys = {"optimizer_type": "sgd", "learning_rate": RATE, **keys}
    built = schema.build(sections.OptimizerParams, keys, report)
    assert report.messages == []
    return built


def start():
    generator = np.random.default_rng(0)
    return {"kernel": generator.normal(size=(3, 2)), "bias": generator.normal(size=2)}


def gradients(values, step):
    """Gradients of sum(0.5 (step + 1) x^2), the loss of `train`."""
    return {name: (step + 1.0) * value for name, value in values.items()}


def train(params, steps=STEPS, loss_factor=1.0, batches_per_step=1):
    """Trains the two variables and returns their values after each step."""
    history = []
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        variables = {
            name: tf.get_variable(name, initializer=value.astype("f"), use_resource=True)
            for name, value in start().items()
        }
        weight = tf.cast(step + 1, tf.float32)
        loss = tf.add_n([0.5 * weight * tf.reduce_sum(v**2) for v in variables.values()])
        train_op, _ = make_train_op(loss * loss_factor, params, batches_per_step=batches_per_step)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(train_op)
                history.append(session.run(variables))
            history.append(int(session.run(step)))
    return history


def simulate(update, clip=lambda grads: grads):
    """Runs `update(name, x, g, state, t)` in float64 and returns the values after each step."""
    values, states, history = start(), {"kernel": {}, "bias": {}}, []
    for step in range(STEPS):
        grads = clip(gradients(values, step))
        values = {
            name: update(name, values[name], grads[name], states[name], step + 1) for name in values
        }
        history.append(values)
    return history


def assert_same(history, expected):
    assert history[-1] == STEPS
    for received, wanted in zip(history, expected):
        for name in wanted:
            np.testing.assert_allclose(received[name], wanted[name], rtol=2e-5, atol=1e-6)


def test_sgd_is_its_formula():
    assert_same(train(settings()), simulate(lambda name, x, g, state, t: x - RATE * g))


def test_momentum_is_its_formula():
    def update(name, x, g, state, t):
        state["v"] = 0.9 * state.get("v", 0.0) + g
        return x - RATE * state["v"]

    assert_same(train(settings(optimizer_type="momentum")), simulate(update))


def test_rmsprop_is_its_formula():
    def update(name, x, g, state, t):
        state["ms"] = 0.9 * state.get("ms", 1.0) + 0.1 * g**2
        return x - RATE * g / np.sqrt(state["ms"] + 1e-8)

    assert_same(train(settings(optimizer_type="rmsprop")), simulate(update))


def adam(beta1=0.9, beta2=0.999, epsilon=1e-8, corrected=True, decay=None):
    def update(name, x, g, state, t):
        state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
        state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * g**2
        factor = np.sqrt(1 - beta2**t) / (1 - beta1**t) if corrected else 1.0
        step = factor * state["m"] / (np.sqrt(state["v"]) + epsilon)
        return x - RATE * (step + (decay or {}).get(name, 0.0) * x)

    return update


def test_adam_is_its_formula():
    assert_same(train(settings(optimizer_type="adam")), simulate(adam()))


@pytest.mark.parametrize("corrected", [False, True])
def test_adamw_decays_kernels_and_spares_biases(corrected):
    params = settings(
        optimizer_type="adamw",
        beta2=0.95,
        epsilon=1e-5,
        weight_decay_rate=0.1,
        use_bias_correction=corrected,
    )
    update = adam(0.9, 0.95, 1e-5, corrected, {"kernel": 0.1})
    assert_same(train(params), simulate(update))


def adamw_settings(**keys):
    given = {"beta2": 0.95, "epsilon": 0.3, "weight_decay_rate": 0.1, "use_bias_correction": True}
    return settings(optimizer_type="adamw", exclude_from_weight_decay=[], **{**given, **keys})


def test_adamw_with_a_corrected_epsilon_is_pytorchs():
    torch = pytest.importorskip("torch")
    tensors = {n: torch.tensor(x.astype("f"), requires_grad=True) for n, x in start().items()}
    options = {"betas": (0.9, 0.95), "eps": 0.3, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW(list(tensors.values()), lr=RATE, **options)
    expected = []
    for step in range(STEPS):
        for tensor in tensors.values():
            tensor.grad = (step + 1.0) * tensor.detach()
        optimizer.step()
        expected.append({name: x.detach().numpy().copy() for name, x in tensors.items()})
    assert_same(train(adamw_settings(epsilon_mode="corrected")), expected)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same(train(adamw_settings()), expected)


def test_adamw_is_one_node_a_variable_and_one_body_a_shape():
    params = settings(optimizer_type="adamw", weight_decay_rate=0.01)
    with tf.Graph().as_default() as graph:
        variables = [tf.get_variable(f"w{i}", [2, 3], use_resource=True) for i in range(3)]
        make_train_op(tf.add_n([tf.reduce_sum(v**2) for v in variables]), params)
        calls = [op for op in graph.get_operations() if op.type == "StatefulPartitionedCall"]
    assert len(calls) == 3
    assert len({call.get_attr("f").name for call in calls}) == 1


def test_clipping_by_norm_bounds_the_norm_of_all_gradients_together():
    def clip(grads):
        norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
        return {name: g * min(1.0, 0.5 / norm) for name, g in grads.items()}

    sgd = simulate(lambda name, x, g, state, t: x - RATE * g, clip)
    assert_same(train(settings(max_gradient_norm=0.5)), sgd)


def test_clipping_by_value_bounds_each_element():
    sgd = simulate(
        lambda name, x, g, state, t: x - RATE * g,
        lambda grads: {name: np.clip(g, -0.3, 0.3) for name, g in grads.items()},
    )
    assert_same(train(settings(max_gradient_value=0.3)), sgd)


@pytest.mark.parametrize("factor", [1024.0, "dynamic", "tf_dynamic"])
def test_loss_scale_does_not_change_finite_steps(factor):
    sgd = simulate(lambda name, x, g, state, t: x - RATE * g)
    assert_same(train(settings(loss_scaling_factor=factor)), sgd)


def nodes(variables, **keys):
    """Nodes of the graph that trains some variables, those of its functions included."""
    with tf.Graph().as_default() as graph:
        held = [tf.get_variable(f"v{i}", [3], use_resource=True) for i in range(variables)]
        loss = tf.add_n([tf.reduce_sum(v**2) for v in held])
        make_train_op(loss, settings(**keys))
        definition = graph.as_graph_def()
    bodies = definition.library.function
    # Arguments of a body are nodes of it in TensorFlow's memory.
    return len(definition.node) + sum(len(f.node_def) + len(f.signature.input_arg) for f in bodies)


@pytest.mark.parametrize("kind, more", [("adamw", 1), ("adam", 2), ("momentum", 2), ("sgd", 2)])
def test_a_dynamic_loss_scale_adds_a_node_or_two_a_variable(kind, more):
    dynamic = {"optimizer_type": kind, "loss_scaling_factor": "dynamic"}
    scaled = nodes(20, **dynamic) - nodes(10, **dynamic)
    assert scaled == nodes(20, optimizer_type=kind) - nodes(10, optimizer_type=kind) + 10 * more


@pytest.mark.parametrize(
    "keys",
    [
        {"optimizer_type": "adamw", "weight_decay_rate": 0.1},
        {"optimizer_type": "adamw", "weight_decay_rate": 0.1, "use_bias_correction": True},
        {"optimizer_type": "adam"},
        {"optimizer_type": "momentum"},
        {"optimizer_type": "sgd"},
        {"optimizer_type": "rmsprop", "momentum": 0.5},
    ],
)
def test_a_step_that_overflows_leaves_everything_as_it_was(keys):
    """Variables, slots and powers, of a first step and of a later one."""
    dynamic = settings(**keys, loss_scaling_factor="dynamic", overflow_tolerance=0.9)
    with tf.Graph().as_default(), tf.Session() as session:
        held = tf.get_variable("held", initializer=start()["kernel"].astype("f"), use_resource=True)
        factor = tf.placeholder(tf.float32, [])
        train_op, _ = make_train_op(factor * tf.reduce_sum(held**2), dynamic)
        counters = ("global_step", "loss_scale", "since_rescale")
        kept = [v for v in tf.global_variables() if not v.op.name.endswith(counters)]
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            before = session.run(kept)
            session.run(train_op, {factor: 3e38})
            for variable, old, new in zip(kept, before, session.run(kept)):
                np.testing.assert_array_equal(new, old, err_msg=variable.name)
            session.run(train_op, {factor: 1.0})
            assert (session.run(held) != before[kept.index(held)]).any()


def test_accumulated_gradients_equal_one_step_on_their_mean():
    history = train(settings(), steps=3, batches_per_step=3)
    kept, moved = history[1], history[2]
    assert history[-1] == 1
    for name, value in start().items():
        np.testing.assert_array_equal(kept[name], value.astype("f"))
        np.testing.assert_allclose(moved[name], value - RATE * value, rtol=1e-5)


def test_costs_are_means_over_the_batches_of_the_step_so_far():
    with tf.Graph().as_default(), tf.Session() as session:
        cost = tf.placeholder(tf.float32, [])
        loss = cost * tf.get_variable("w", initializer=1.0)
        train_op, means = make_train_op(loss, settings(), False, 3, [cost, 2.0 * cost])
        session.run(tf.global_variables_initializer())
        found = [session.run([*means, train_op], {cost: x})[:2] for x in (1, 3, 8, np.nan, 5, 6, 2)]
    expected = [[1, 2], [2, 4], [4, 8], [np.nan] * 2, [np.nan] * 2, [np.nan] * 2, [2, 4]]
    np.testing.assert_array_equal(found, expected)


def test_variable_without_gradient_is_named():
    with tf.Graph().as_default():
        tf.get_variable("unused", [1])
        used = tf.get_variable("used", [1])
        with raises(GraphError, "unused:0"):
            make_train_op(tf.reduce_sum(used), settings())


def rates(value, steps, reset_steps=True):
    report = schema.Report("test")
    pieces = sections.build_schedule(value, "learning_rate", report)
    assert report.messages == []
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = learning_rate(pieces, step, reset_steps)
        return [session.run(rate, {step: s}) for s in steps]


def linear(first, last, steps):
    return {
        "scheduler": "Linear",
        "initial_learning_rate": first,
        "end_learning_rate": last,
        "steps": steps,
    }


def test_number_is_constant():
    np.testing.assert_allclose(rates("1e-3", [0, 10**6]), [1e-3, 1e-3], rtol=1e-6)


def test_linear_is_a_line_and_then_stays():
    steps = np.array([0, 1, 50, 100, 1000])
    expected = 0.1 + (0.5 - 0.1) * np.minimum(steps / 100, 1)
    np.testing.assert_allclose(rates(linear(0.1, 0.5, 100), steps), expected, rtol=1e-6)


def test_polynomial_follows_its_power():
    steps = np.array([0, 30, 99, 100])
    value = {**linear(1.0, 0.2, 100), "scheduler": "Polynomial", "power": 2.0}
    expected = 0.8 * (1 - np.minimum(steps / 100, 1)) ** 2 + 0.2
    np.testing.assert_allclose(rates(value, steps), expected, rtol=1e-5)


def test_polynomial_cycle_grows_to_the_next_multiple():
    steps = np.array([0, 100, 101, 150, 200, 201])
    value = {**linear(1.0, 0.0, 100), "scheduler": "Polynomial", "cycle": True}
    length = 100 * np.maximum(np.ceil(steps / 100), 1)
    np.testing.assert_allclose(rates(value, steps), 1 - steps / length, rtol=1e-5, atol=1e-7)


def test_cosine_falls_to_alpha():
    steps = np.array([0, 10, 50, 100, 500])
    value = {"scheduler": "Cosine", "initial_learning_rate": 2.0, "decay_steps": 100, "alpha": 0.1}
    done = np.minimum(steps / 100, 1)
    expected = 2.0 * (0.9 * 0.5 * (1 + np.cos(math.pi * done)) + 0.1)
    np.testing.assert_allclose(rates(value, steps), expected, rtol=1e-5)


@pytest.mark.parametrize("staircase", [False, True])
def test_exponential_decays_by_its_rate(staircase):
    steps = np.array([0, 5, 10, 25])
    value = {
        "scheduler": "Exponential",
        "initial_learning_rate": 1.0,
        "decay_steps": 10,
        "decay_rate": 0.5,
        "staircase": staircase,
    }
    power = np.floor(steps / 10) if staircase else steps / 10
    np.testing.assert_allclose(rates(value, steps), 0.5**power, rtol=1e-5)


def test_piecewise_constant_keeps_a_value_up_to_and_with_its_boundary():
    value = {"scheduler": "PiecewiseConstant", "boundaries": [10, 20], "values": [3.0, 2.0, 1.0]}
    assert rates(value, [0, 10, 11, 20, 21]) == [3.0, 3.0, 2.0, 2.0, 1.0]


def test_pieces_run_one_after_another_with_steps_of_their_own_or_the_global_one():
    value = [linear(0.0, 1.0, 10), linear(1.0, 0.0, 100)]
    steps = [0, 5, 9, 10, 60, 110, 500]
    np.testing.assert_allclose(rates(value, steps), [0, 0.5, 0.9, 1.0, 0.5, 0, 0], atol=1e-6)
    np.testing.assert_allclose(rates(value, [5, 10, 60], False), [0.5, 0.9, 0.4], atol=1e-6)
    cosine = {"scheduler": "Cosine", "initial_learning_rate": 1.0, "decay_steps": 5, "steps": 10}
    np.testing.assert_allclose(rates([cosine, value[1]], [0, 5, 9, 10, 60]), [1, 0, 0, 1, 0.5])


def run(flags, initial=64.0, period=3, minimum=1.0, maximum=1024.0, tolerance=0.05):
    """Returns (scale, steps, overflows) after each step; a flag tells if the step was finite."""
    with tf.Graph().as_default(), tf.Session() as session:
        scale = DynamicLossScale(initial, period, minimum, maximum, tolerance)
        finite, counted = tf.placeholder(tf.bool, []), tf.constant(True)
        update = scale.update(finite, counted)
        session.run(tf.global_variables_initializer())
        history = []
        for flag in flags:
            session.run(update, {finite: flag})
            history.append(session.run([scale.variable, scale.steps, scale.overflows]))
        return [tuple(map(float, row)) for row in history]


def test_scale_doubles_after_a_period_and_halves_after_overflows_within_its_bounds():
    assert run([True] * 4) == [(64, 1, 0), (64, 2, 0), (128, 0, 0), (128, 1, 0)]
    assert run([True, False]) == [(64, 1, 0), (32, 0, 0)]
    rare = run([True, True, True, False], period=100, tolerance=0.25)
    assert rare[-1] == (64, 4, 1)  # within the tolerance, and only counted
    assert run([True] * 3, initial=1024.0)[-1][0] == 1024.0
    assert run([False], initial=1.0)[-1][0] == 1.0
