"""Products in bfloat16: near float32, resumed bit for bit; half precision as TensorFlow's."""

from __future__ import annotations

import io
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.compiler import pipeline
from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator.run_config import CSRunConfig
from cerebras_tf.passes import lower_products, round_operands
from modelzoo.bert.model import model_fn as bert_model_fn
from modelzoo.gpt3.model import model_fn as gpt_model_fn
from tests.e2e import models, zoo_models
from tests.e2e.host_and_wafer import Run, estimator, input_from, is_rounding, train

CONFIGS = Path(__file__).parents[2] / "configs"
LENGTH, BATCH = 32, 8
SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 256}
SIDES = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}


def tree_of(name, **model):
    tree = yaml.safe_load((CONFIGS / f"params_{name}.yaml").read_text(encoding="utf-8"))
    tree["train_input"].update(max_sequence_length=LENGTH, batch_size=BATCH)
    tree["model"].update({**SIZES, **model}, mixed_precision=False)
    return tree


def with_params(model_fn, tree):
    """The model_fn with `tree` for params."""

    def made(features, labels, mode, params):
        return model_fn(features, labels, mode, tree)

    return made


def gpt(**model):
    return with_params(gpt_model_fn, tree_of("gpt3_tiny", **model))


def gpt_batches(count=3):
    drawn = np.random.default_rng(4).integers(0, 256, (count, BATCH, LENGTH + 1)).astype(np.int32)
    return [
        ({"input_ids": ids[:, :-1], "input_mask": np.zeros_like(ids[:, 1:])}, ids[:, 1:])
        for ids in drawn
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """20 steps by precision, saved every tenth: (run, folder, what was logged)."""
    logger, found = tf.get_logger(), {}
    level = logger.level
    logger.setLevel("INFO")
    for precision in ("float32", "bfloat16"):
        folder, text = tmp_path_factory.mktemp(precision), io.StringIO()
        handler = logging.StreamHandler(text)
        logger.addHandler(handler)
        try:
            given = {"precision": precision, "save_checkpoints_steps": 10}
            run = train(gpt(), gpt_batches(), folder, True, log_step_count_steps=1, **given)
        finally:
            logger.removeHandler(handler)
        found[precision] = run, folder, text.getvalue().splitlines()
    logger.setLevel(level)
    return found


@pytest.fixture
def stopped(runs, tmp_path):
    """A folder with what a run in bfloat16 left that stopped at step 10."""
    for path in runs["bfloat16"][1].glob("model.ckpt-10.*"):
        shutil.copy(path, tmp_path)
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), str(tmp_path / "model.ckpt-10"))
    return tmp_path


def test_training_ends_near_float32_and_not_on_it(runs):
    losses = np.array([run.losses for run, _, _ in runs.values()])
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.01)
    assert (losses[0] != losses[1]).any()
    assert losses[1, -1] < losses[1, 0]
    for content in runs["bfloat16"][0].variables.values():
        assert content.dtype in (np.float32, np.int64)


def test_a_stopped_run_resumes_bit_for_bit(runs, stopped):
    rest = Run()
    made = estimator(gpt(), stopped, rest, precision="bfloat16")
    made.train(input_from(gpt_batches(), 10), max_steps=12)
    assert rest.losses == runs["bfloat16"][0].losses[10:12]


def test_the_host_and_float32_resume_from_its_checkpoint(runs, stopped):
    rest = Run()
    for use_cs, start in ((False, 10), (True, 12)):
        made = estimator(gpt(), stopped, rest)
        made.train(input_from(gpt_batches(), start), max_steps=start + 2, use_cs=use_cs)
    assert len(rest.losses) == 4
    np.testing.assert_allclose(rest.losses, runs["float32"][0].losses[10:14], rtol=0.01)


def test_what_multiplies_is_logged(runs):
    logged = runs["bfloat16"][2]
    (line,) = {each for each in logged if each.startswith("large products in bfloat16: ")}
    assert "by A" in line or "not faster" in line
    assert not any("no large matrix products" in each for each in logged)


def gradients(model_fn, arrays, folder, precision):
    """Gradient of every variable at initial weights."""
    found = {}

    def recorded(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        variables = tf.compat.v1.trainable_variables()
        taken = tf.gradients(spec.loss, variables)
        tensors = {
            v.op.name: tf.convert_to_tensor(g) for v, g in zip(variables, taken) if g is not None
        }

        class Recorder(tf.estimator.SessionRunHook):
            def before_run(self, run_context):
                return tf.estimator.SessionRunArgs(tensors)

            def after_run(self, run_context, run_values):
                found.update(run_values.results)

        return spec._replace(training_hooks=[*spec.training_hooks, Recorder()])

    train(recorded, arrays, folder, True, steps=1, precision=precision)
    return found


def bert():
    return with_params(bert_model_fn, tree_of("bert_tiny", disable_nsp=True))


def bert_batches():
    random = np.random.default_rng(5)
    size, masked = (BATCH, LENGTH), (BATCH, 16)
    ids = random.integers(5, 60, size).astype(np.int32)
    features = {
        "input_ids": ids,
        "input_mask": np.zeros(size, np.int32),
        "segment_ids": np.zeros(size, np.int32),
        "masked_lm_positions": np.tile(np.arange(16, dtype=np.int32), (BATCH, 1)),
        "masked_lm_weights": np.ones(masked, np.float32),
        "masked_lm_ids": ids[:, :16],
    }
    return [(features, np.zeros(BATCH, np.int32))]


@pytest.mark.parametrize(
    ("model", "arrays"),
    [(gpt, gpt_batches), pytest.param(bert, bert_batches, marks=pytest.mark.slow)],
)
def test_gradients_of_initial_weights_point_where_those_of_float32_do(model, arrays, tmp_path):
    exact, rounded = (
        gradients(model(), arrays()[:1], tmp_path / precision, precision)
        for precision in ("float32", "bfloat16")
    )
    largest = max(np.abs(gradient).max() for gradient in exact.values())
    for name, gradient in exact.items():
        if is_rounding(np.abs(gradient).max() / largest):
            continue  # of a key's bias: nothing in exact arithmetic
        a, b = gradient.ravel().astype(np.float64), rounded[name].ravel().astype(np.float64)
        norm = np.linalg.norm(a) * np.linalg.norm(b)
        assert norm == 0 or a @ b / norm >= 0.999, name


@pytest.mark.parametrize(
    ("model", "arrays"),
    [
        pytest.param(gpt, gpt_batches, marks=pytest.mark.slow),
        pytest.param(bert, bert_batches, marks=pytest.mark.slow),
        pytest.param(zoo_models.gptj, zoo_models.gpt_batches, marks=pytest.mark.slow),
        (lambda: zoo_models.transformer(**SIDES), zoo_models.transformer_batches),
    ],
    ids=["gpt", "bert", "gptj", "transformer"],
)
def test_weights_stored_in_bfloat16_change_no_bit(model, arrays, tmp_path, monkeypatch):
    monkeypatch.setattr(lower_products, "LEAST_WORK", 0)
    monkeypatch.setattr(lower_products, "LEAST_SIZE", 1)
    fired = []

    def rounding(graph):
        before = len(graph.nodes)
        round_operands.round_operands(graph)
        fired.append(len(graph.nodes) - before)

    runs = []
    for number, rounds in enumerate((lambda graph: None, rounding)):
        monkeypatch.setattr(pipeline, "round_operands", rounds)
        folder = tmp_path / str(number)
        runs.append(train(model(), arrays()[:2], folder, True, steps=2, precision="bfloat16"))
    assert max(fired) > 4
    assert runs[1].losses == runs[0].losses
    for name, content in runs[0].variables.items():
        np.testing.assert_array_equal(runs[1].variables[name], content, err_msg=name)


class Message:
    use_cbfloat16 = True


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "float32"),
        ({"precision": "bfloat16"}, "bfloat16"),
        ({"cs_config": Message()}, "bfloat16"),
        ({"cs_config": Message(), "precision": "float32"}, "float32"),
    ],
)
def test_precision_comes_from_the_configuration(given, wanted):
    config = CSRunConfig(**given)
    assert config.precision == config.replace(save_checkpoints_steps=3).precision == wanted
    if wanted == "bfloat16":
        assert config.replace(keep_float32=["router/"]).keep_float32 == ("router/",)
    else:
        with pytest.raises(ConfigError, match="keep_float32 has no effect"):
            config.replace(keep_float32=["router/"])


v1 = tf.compat.v1


def elementwise(x, dtype):
    kernel = v1.get_variable("kernel", [8], tf.float32)
    return squashed(x * tf.cast(kernel, dtype), dtype)[:, :4]


def products(x, dtype):
    kernel = v1.get_variable("kernel", [8, 16], tf.float32)
    output = v1.get_variable("output", [16, 4], tf.float32)
    return tf.matmul(squashed(tf.matmul(x, tf.cast(kernel, dtype)), dtype), tf.cast(output, dtype))


def host_truncates():
    """Whether TensorFlow cuts a product to bfloat16 instead of rounding it: without oneDNN."""
    with tf.Graph().as_default(), v1.Session() as session:
        ones = tf.ones([16, 16], tf.bfloat16)  # 15 + 1.09375, nearest to 16.125, cut to 16
        values = tf.concat([ones[:15], ones[:1] * tf.constant(1.09375, tf.bfloat16)], axis=0)
        return float(session.run(tf.cast(tf.matmul(ones, values), tf.float32))[0, 0]) < 16.0625


def squashed(x, dtype):
    x = tf.nn.relu(x)
    return x / (tf.constant(1, dtype) + tf.abs(x)) - x * tf.constant(0.1, dtype)


@pytest.mark.parametrize(
    ("dtype", "layer"),
    # TensorFlow rounds sums of float16 at every term; here, as on the wafer, they are float32.
    [(tf.float16, elementwise), (tf.bfloat16, elementwise), (tf.bfloat16, products)],
)
def test_losses_are_those_of_tensorflow_s_own_half_precision(dtype, layer, tmp_path):
    if layer is products and host_truncates():
        pytest.skip("on this processor TensorFlow truncates products to bfloat16")

    def logits(features, training):
        return tf.cast(layer(tf.cast(features, dtype), dtype), tf.float32)

    model = models.classifier(logits, models.gradient_descent)
    runs = {
        name: train(model, models.points(), tmp_path / name, name != "host", steps=1, **config)
        for name, config in (("host", {}), ("wide", {}), ("half", {"precision": "emulate"}))
    }
    loss = {name: run.losses[0] for name, run in runs.items()}
    assert loss["half"] == pytest.approx(loss["host"], rel=2e-7)  # the loss itself is float32
    assert loss["wide"] != pytest.approx(loss["host"], rel=2e-6)


def scaled_loss(scale):
    """A loss whose gradients overflow float16 where the scale is too large."""

    def model_fn(features, labels, mode, params):
        w = v1.get_variable("w", [8, 4], tf.float32, v1.initializers.ones())
        y = tf.matmul(tf.cast(features, tf.float16), tf.cast(w, tf.float16))
        loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
        (gradient,) = tf.gradients(loss * scale, [w])
        finite = tf.reduce_all(tf.math.is_finite(gradient))
        step = tf.where(finite, gradient / scale, tf.zeros_like(gradient))
        update = w.assign_sub(1e-3 * step)
        counted = v1.assign_add(v1.train.get_or_create_global_step(), 1)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.group(update, counted))

    return model_fn


@pytest.mark.parametrize(
    ("precision", "scale", "learns"),
    [("emulate", 2.0**10, True), ("emulate", 2.0**20, False), ("float32", 2.0**20, True)],
)
def test_a_loss_scale_that_is_too_large_overflows_where_it_is_emulated(
    precision, scale, learns, tmp_path
):
    run = train(scaled_loss(scale), models.points(), tmp_path, True, steps=3, precision=precision)
    assert (run.variables["w"] != 1).any() == learns
