"""Provides tf.estimator on TensorFlow 2.16 and later, which were released without it.

The code is that of the package tensorflow-estimator 2.15.0, which is pure Python. It imports three
internals that TensorFlow 2.16 removed; `_supply_internals` replaces them before it is loaded. The
module is loaded at the first use of `tf.estimator`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any, Optional

_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
_API = "tensorflow_estimator.python.estimator.api._v{}.estimator"
# Exists in every release with tf.estimator, and in none without.
_BELONGS_TO_ESTIMATOR = "python/distribute/estimator_training.py"
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


def provide() -> None:
    """Sets `tf.estimator` and `tf.compat.v1.estimator`, now or when TensorFlow is imported.

    Does nothing on TensorFlow 2.15. On later releases it also selects the Keras of that time,
    tf_keras, by TF_USE_LEGACY_KERAS=1, unless the variable is set: tf.estimator trains graphs of
    version 1, in which a layer of Keras 3 has no variables.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
    elif not _has_estimator(getattr(tensorflow, "__file__", None)):
        _select_legacy_keras()
        _set_attributes(tensorflow)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the import of TensorFlow; finds nothing else and is used once."""

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Returns TensorFlow's spec, whose loader also sets the attributes."""
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None or _has_estimator(spec.origin):
            return spec
        _select_legacy_keras()
        load = spec.loader.exec_module

        def load_and_set(module: types.ModuleType) -> None:
            load(module)
            _set_attributes(module)

        vars(spec.loader)["exec_module"] = load_and_set
        return spec


def _has_estimator(tensorflow_init: Optional[str]) -> bool:
    """Whether this TensorFlow has tf.estimator; also for what is no installed TensorFlow."""
    if not tensorflow_init:
        return True
    folder = Path(tensorflow_init).parent
    return not (folder / "python/distribute").is_dir() or (folder / _BELONGS_TO_ESTIMATOR).exists()


def _select_legacy_keras() -> None:
    if _LEGACY_KERAS not in os.environ and importlib.util.find_spec("tf_keras") is not None:
        os.environ[_LEGACY_KERAS] = "1"


def _set_attributes(tensorflow: Any) -> None:
    """Sets tf.estimator in the namespaces where TensorFlow 2.15 has it."""
    v1, v2 = _EstimatorModule("1", tensorflow.compat.v1), _EstimatorModule("2", tensorflow)
    tensorflow.estimator = tensorflow.compat.v2.estimator = v2
    tensorflow.compat.v1.estimator = v1


class _EstimatorModule(types.ModuleType):
    """A module that loads one version of tf.estimator's names at the first use of one of them."""

    def __init__(self, version: str, parent: Any) -> None:
        super().__init__("tensorflow.estimator")
        self._version, self._parent = version, parent

    def __getattr__(self, name: str) -> Any:
        # Python asks modules for these when it imports or inspects them.
        if name in ("__path__", "__file__", "__wrapped__"):
            raise AttributeError(name)
        module = _load(self._version)
        self._parent.estimator = module
        return getattr(module, name)

    def __dir__(self) -> list[str]:
        return dir(_load(self._version))


@functools.cache
def _load(version: str) -> types.ModuleType:
    """Imports tf.estimator's names of version "1" or "2"."""
    _supply_internals()
    try:
        return importlib.import_module(_API.format(version))
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow_estimator", "tf_keras"):
            raise
        raise ModuleNotFoundError(
            "tf.estimator: this TensorFlow needs the packages tensorflow-estimator 2.15.0 and "
            f"tf_keras. Received: no {error.name}. Install them with pip; tf_keras in "
            "TensorFlow's version.",
            name=error.name,
        ) from error


@functools.cache
def _supply_internals() -> None:
    """Supplies what tensorflow-estimator 2.15.0 imports and TensorFlow 2.16 no longer has."""
    from cerebras_tf.tf_compat.internals import tf_export

    training = types.ModuleType("tensorflow.python.distribute.estimator_training")
    vars(training).update(
        init_run_config=lambda config, tf_config: None,
        should_run_distribute_coordinator=lambda config: False,
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
