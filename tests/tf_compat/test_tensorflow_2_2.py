"""The names and defaults of TensorFlow 2.2, each as in a process that the launchers start."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from google.protobuf import json_format

from cerebras_tf.tf_compat import startup, tensorflow_2_2
from cerebras_tf.tf_compat.tensorflow_2_2 import LossScaleOptimizer

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
KERAS = tf.keras.layers.Layer.__module__.partition(".")[0]


def keras_module(name):
    tf.keras.layers.Dense  # noqa: B018 loads Keras
    return sys.modules[f"{KERAS}.src.{name}"]


@pytest.fixture
def experimental(monkeypatch):
    parent = types.SimpleNamespace(**vars(tf.keras.mixed_precision) | {"__name__": "parent"})
    monkeypatch.setitem(sys.modules, "parent.experimental", None)
    tensorflow_2_2._change_mixed_precision(parent)
    return sys.modules["parent.experimental"]


def test_a_policy_takes_loss_scale_and_is_that_of_layers(experimental):
    policy = experimental.Policy("mixed_float16", loss_scale=None)
    assert tf.keras.layers.Dense(2, dtype=policy).compute_dtype == "float16"
    before = tf.keras.mixed_precision.global_policy()
    try:
        experimental.set_policy(policy)
        assert experimental.global_policy() is policy
    finally:
        experimental.set_policy(before)


def test_a_policy_refuses_a_loss_scale_that_nothing_would_use(experimental):
    with pytest.raises(NotImplementedError, match="Received: 8.0 for mixed_float16"):
        experimental.Policy("mixed_float16", loss_scale=8.0)


def loss_scales():
    scales = v1.train.experimental
    return [
        ("dynamic", True, 2.0**15),
        (8.0, False, 8.0),
        (scales.FixedLossScale(4.0), False, 4.0),
        (scales.DynamicLossScale(initial_loss_scale=2.0), True, 2.0),
    ]


def test_a_loss_scale_optimizer_takes_each_kind_of_loss_scale():
    for given, dynamic, scale in loss_scales():
        made = LossScaleOptimizer(tf.keras.optimizers.legacy.SGD(1.0), given)
        assert isinstance(made, LossScaleOptimizer)
        assert (made.dynamic, made.initial_scale) == (dynamic, scale)
    assert not isinstance(tf.keras.optimizers.legacy.SGD(1.0), LossScaleOptimizer)
    with pytest.raises(NotImplementedError, match="Received: 'tf_dynamic'"):
        LossScaleOptimizer(tf.keras.optimizers.legacy.SGD(1.0), "tf_dynamic")


def test_layers_may_assign_the_properties_of_their_policy_and_nothing_else(monkeypatch):
    layers = keras_module("engine.base_layer")
    for name in tensorflow_2_2._PROPERTIES:
        monkeypatch.setattr(layers.Layer, name, getattr(layers.Layer, name))
    tensorflow_2_2._change_layers(layers)
    layer = tf.keras.layers.Dense(2, name="dense_layer")
    layer.dtype_policy = layer._dtype_policy
    layer.variable_dtype = "float32"
    with pytest.raises(ValueError, match="dense_layer: compute_dtype must be .* float32"):
        layer.compute_dtype = "float16"


def test_an_initializer_without_a_seed_draws_anew_and_follows_the_seed_of_the_graph(monkeypatch):
    backend = keras_module("backend")
    monkeypatch.setattr(backend.RandomGenerator, "__init__", backend.RandomGenerator.__init__)
    tensorflow_2_2._change_random_generator(backend)
    drawn = []
    for _ in range(2):
        free, seeded = (
            tf.keras.initializers.RandomNormal(),
            tf.keras.initializers.RandomNormal(seed=1),
        )
        with tf.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(7)
            drawn += session.run([free([3]), free([3]), seeded([3]), seeded([3])])
    first, second, third, fourth, *again = (each.tolist() for each in drawn)
    assert first != second and third == fourth
    assert again == [first, second, third, fourth]


@pytest.mark.parametrize("groups", [(), (2,)])
def test_a_convolution_takes_positions_of_before_and_after_groups(monkeypatch, groups):
    module = keras_module("layers.convolutional.conv2d")
    monkeypatch.setattr(module.Conv2D, "__init__", module.Conv2D.__init__)
    tensorflow_2_2._change_convolution(2, module)
    layer = tf.keras.layers.Conv2D(4, 3, (1, 1), "same", None, (1, 1), *groups, "relu", False)
    assert (layer.groups, layer.use_bias) == (*(groups or (1,)), False)
    assert layer.activation is tf.keras.activations.relu


def test_messages_become_json_without_default_values():
    changed = types.SimpleNamespace(**vars(json_format))
    tensorflow_2_2._change_json_format(changed)
    message = v1.ConfigProto(allow_soft_placement=True)
    for convert in (changed.MessageToDict, changed.MessageToJson):
        assert "allowSoftPlacement" in convert(message, including_default_value_fields=False)


def test_layers_of_the_private_keras_are_those_of_keras(monkeypatch):
    old = types.ModuleType("old")
    vars(old).update(Flatten=object, concatenate=len, serialization=None)
    loaded = {"layers": old, "mixed_precision": types.ModuleType("private")}
    for name, module in loaded.items():
        monkeypatch.setitem(sys.modules, f"{tensorflow_2_2._OLD_KERAS}.{name}", module)
    for name in ("", ".loss_scale_optimizer"):
        monkeypatch.setitem(sys.modules, f"private.experimental{name}", None)
    tensorflow_2_2._change_tensorflow(tf)
    assert old.Flatten is tf.keras.layers.Flatten
    assert old.concatenate is tf.keras.layers.concatenate
    found = sys.modules["private.experimental.loss_scale_optimizer"]
    assert found.LossScaleOptimizer is LossScaleOptimizer
    with pytest.raises(AttributeError, match="'old' has no attribute 'Dense'"):
        old.Dense  # noqa: B018


def test_another_package_modelzoo_on_the_path_comes_before_ours(monkeypatch, tmp_path):
    (tmp_path / "modelzoo").mkdir()
    own = str(tensorflow_2_2._OWN_FOLDER)
    monkeypatch.setattr(sys, "path", [own, str(tmp_path)])
    assert tensorflow_2_2._Finder().find_spec("modelzoo", None) is None
    (tmp_path / "modelzoo" / "__init__.py").touch()
    importlib.invalidate_caches()
    spec = tensorflow_2_2._Finder().find_spec("modelzoo", None)
    assert spec.origin == str(tmp_path / "modelzoo" / "__init__.py")


def test_a_python_with_the_folder_on_its_path_also_runs_the_users_sitecustomize(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('user')\n", encoding="utf-8")
    folder = Path(startup.__file__).parent
    program = (
        "import sys; print(type(sys.meta_path[0]).__module__, "
        f"{str(folder)!r} in sys.path, 'tensorflow' in sys.modules)"
    )
    paths = f"{folder}:{tmp_path}:{tensorflow_2_2._OWN_FOLDER}"
    ran = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert ran.stdout == "user\ncerebras_tf.tf_compat.tensorflow_2_2 False False\n", ran.stderr
