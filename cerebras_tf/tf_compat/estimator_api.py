"""Provides tf.estimator on TensorFlow 2.16 and later, which were released without it.

The code is that of the package tensorflow-estimator 2.15.0, which is pure Python. It imports three
internals that TensorFlow 2.16 removed; `supply_internals` replaces them before it is loaded. The
module is loaded at the first use of `tf.estimator`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
_KERAS_3 = "keras.src.backend.tensorflow"
_KERAS_3_STATE, _NUMBERS = "keras.src.backend.common.global_state", "object_name_uids"
_KERAS_2 = "tf_keras"
_PRIVATE = "tensorflow_estimator.python.estimator"
_API = f"{_PRIVATE}.api._v{{}}.estimator"
# Modules that scripts import by their names.
_ALIASES = {
    "tensorflow.estimator": _API.format(2),
    "tensorflow.compat.v1.estimator": _API.format(1),
    "tensorflow.compat.v2.estimator": _API.format(2),
    "tensorflow.python.estimator": _PRIVATE,
}
# Modules that only tf.estimator's classes for TPUs use.
_TPU_MODULES = (
    "tensorflow.python.tpu.tpu_embedding",
    "tensorflow.python.tpu.tpu_embedding_gradient",
    "tensorflow.python.tpu.feature_column",
    "tensorflow.python.tpu.feature_column_v2",
    "tensorflow.python.tpu.tensor_tracer",
    "tensorflow.python.tpu.session_support",
    "tensorflow.python.tpu.preempted_hook",
)


def set_attributes(tensorflow: Any) -> None:
    """Sets tf.estimator in the namespaces where TensorFlow 2.15 has it.

    The first import of `tensorflow.compat.v1` by its name replaces the module `tf.compat`.
    """
    v1: Any = importlib.import_module("tensorflow.compat.v1")
    v2: Any = importlib.import_module("tensorflow.compat.v2")
    tensorflow.estimator = v2.estimator = _EstimatorModule("2", tensorflow, v2)
    v1.estimator = _EstimatorModule("1", v1)


class _EstimatorModule(types.ModuleType):
    """A module that loads one version of tf.estimator's names at the first use of one of them."""

    def __init__(self, version: str, *parents: Any) -> None:
        super().__init__("tensorflow.estimator")
        self._version, self._parents = version, parents

    def __getattr__(self, name: str) -> Any:
        # Python asks modules for these when it imports or inspects them.
        if name in ("__path__", "__file__", "__wrapped__"):
            raise AttributeError(name)
        module = load(_API.format(self._version))
        for parent in self._parents:
            parent.estimator = module
        return getattr(module, name)

    def __dir__(self) -> list[str]:
        return dir(load(_API.format(self._version)))


def real_name(name: str) -> str:
    """The module of tensorflow-estimator that is imported by `name` on TensorFlow 2.15, or ""."""
    for alias, real in _ALIASES.items():
        if name == alias or name.startswith(f"{alias}."):
            return real + name[len(alias) :]
    return ""


@functools.cache
def load(name: str) -> types.ModuleType:
    """Imports a module of tensorflow-estimator.

    Raises:
        ModuleNotFoundError: tensorflow-estimator or tf_keras is not installed.
    """
    try:
        if not os.environ.get(LEGACY_KERAS):  # then tf.keras is Keras 3
            importlib.import_module(_KERAS_2)
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("tensorflow_estimator", _KERAS_2):
            raise
        raise ModuleNotFoundError(
            "tf.estimator: this TensorFlow needs the packages tensorflow-estimator 2.15.0 and "
            f"tf_keras. Received: no {package}. Install them with pip; tf_keras in "
            "TensorFlow's version.",
            name=error.name,
        ) from error
    _check_layers()
    return module


@functools.cache
def _check_layers() -> None:
    """Makes every Estimator refuse a model_fn whose training would lose updates of Keras 3.

    Layers of Keras 3 are also numbered from one in each model_fn, as those of Keras 2 are in each
    graph: evaluation finds the variables of training.
    """
    estimator = importlib.import_module(f"{_PRIVATE}.estimator")
    call = estimator.Estimator._call_model_fn

    @functools.wraps(call)
    def checked(self: Any, features: Any, labels: Any, mode: str, config: Any) -> Any:
        with _own_names_of_keras_3():
            spec = call(self, features, labels, mode, config)
        if mode == "train" and _KERAS_3 in sys.modules:
            _refuse_state_of_keras_3()
        return spec

    estimator.Estimator._call_model_fn = checked


@contextlib.contextmanager
def _own_names_of_keras_3() -> Iterator[None]:
    state = sys.modules.get(_KERAS_3_STATE)
    if state is None:
        yield
        return
    numbers = state.get_global_attribute(_NUMBERS)
    state.set_global_attribute(_NUMBERS, None)
    try:
        yield
    finally:
        state.set_global_attribute(_NUMBERS, numbers)


def _refuse_state_of_keras_3() -> None:
    v1 = sys.modules["tensorflow"].compat.v1
    place = os.path.dirname(sys.modules[_KERAS_3].__file__ or "")
    trained = {id(variable) for variable in v1.trainable_variables()}
    for variable in v1.global_variables():
        if id(variable) not in trained and any(
            frame.filename.startswith(place) for frame in variable.op.traceback
        ):
            raise ValueError(
                "model_fn: must use layers of Keras 2. Keras 3 does not update the state of its "
                f"layers in a model_fn. Received: {variable.op.name}, a variable of Keras 3. Use "
                f"tf.keras with {LEGACY_KERAS}=1, or tf_keras."
            )


@functools.cache
def supply_internals() -> None:
    """Supplies what tensorflow-estimator 2.15.0 imports and TensorFlow 2.16 no longer has."""
    from cerebras_tf.tf_compat.internals import tf_export

    training = types.ModuleType("tensorflow.python.distribute.estimator_training")
    vars(training).update(
        init_run_config=_init_run_config, should_run_distribute_coordinator=lambda config: False
    )
    sys.modules.setdefault(training.__name__, training)
    tf_export.ESTIMATOR_API_NAME = "estimator"
    for attributes, suffix in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
        attributes["estimator"] = tf_export._Attributes(
            f"_estimator_api_names{suffix}", f"_estimator_api_constants{suffix}"
        )
    for name in _TPU_MODULES:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = _RemovedModule(name)


def _init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
    """Completes a RunConfig with distribution strategies, as TensorFlow 2.15 does on one computer.

    Raises:
        NotImplementedError: the strategy is to train on a cluster.
    """
    given = vars(config).get("_experimental_distribute")
    if given is not None:
        config._train_distribute = config._train_distribute or given.train_distribute
        config._eval_distribute = config._eval_distribute or given.eval_distribute
    cluster = tf_config.get("cluster", {})
    on_cluster = config._train_distribute and cluster and "master" not in cluster
    if on_cluster or (given is not None and given.remote_cluster):
        raise NotImplementedError(
            "tf.estimator: a strategy on a cluster must not be used on this TensorFlow, which has "
            f"no coordinator of tasks. Received: {cluster or given.remote_cluster}. Use TensorFlow "
            "2.15, or several wafers."
        )
    config._init_distributed_setting_from_environment_var(tf_config)
    config._maybe_overwrite_session_config_for_distributed_training()


class _RemovedModule(types.ModuleType):
    """Stands for a module of TensorFlow that is gone; each of its names is a class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_RemovedClass,), {"__module__": self.__name__})


class _RemovedClass:
    """A class that needs a TPU."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError(
            f"{type(self).__module__}.{type(self).__name__}: must not be used on this TensorFlow, "
            "which has no embeddings on TPUs. Received: a call. Use a tf.estimator.Estimator."
        )
