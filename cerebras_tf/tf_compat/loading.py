"""Prepares the import of TensorFlow 2.16 and later: tf.estimator, Keras, lines on the console.

Nothing here imports TensorFlow, and nothing changes on TensorFlow 2.15.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from cerebras_tf.tf_compat import estimator_api
from cerebras_tf.tf_compat.estimator_api import LEGACY_KERAS

# Exists in every release with tf.estimator, and in none without.
_BELONGS_TO_ESTIMATOR = "python/distribute/estimator_training.py"
# The extension modules that log lines when they are loaded, whatever TF_CPP_MIN_LOG_LEVEL is.
_LOGGING_MODULES = (
    "tensorflow.python.platform._pywrap_cpu_feature_guard",
    "tensorflow.python.profiler.internal._pywrap_profiler_plugin",
)
_EARLY_LINES = (
    b"All log messages before absl::InitializeLog()",
    b"oneDNN custom operations are on",
    b"Could not find cuda drivers",
)


def prepare() -> None:
    """Provides tf.estimator, now or when TensorFlow is imported, where TensorFlow lacks it.

    It also selects the Keras that tf.estimator works with, tf_keras, by TF_USELEGACY_KERAS=1,
    unless the variable is set. If the script has imported TensorFlow before, `tf.keras` is tf_keras
    if it was not used yet.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and _has_estimator(getattr(tensorflow, "__file__", None)):
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if tensorflow is not None:
        _select_legacy_keras()
        estimator_api.set_attributes(tensorflow)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow, and the modules of it that log lines, with loaders that do more."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Returns the spec of these modules, and None for others."""
        if fullname == "tensorflow_estimator":  # a script imports its private modules
            estimator_api.supply_internals()
        if name := estimator_api.real_name(fullname):
            return importlib.machinery.ModuleSpec(fullname, _AliasLoader(name))
        if fullname != "tensorflow" and fullname not in _LOGGING_MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        if fullname in _LOGGING_MODULES:
            if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") > "0":
                vars(spec.loader)["create_module"] = _without_early_lines(spec.loader.create_module)
        elif _has_estimator(spec.origin):
            sys.meta_path.remove(self)
        else:
            _select_legacy_keras()
            _load_triton()
            vars(spec.loader)["exec_module"] = _setting_attributes(spec.loader.exec_module)
        return spec


class _AliasLoader(importlib.abc.Loader):
    """Imports a module of another name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: Any) -> types.ModuleType:
        """Returns the other module."""
        module = estimator_api.load(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Restores the spec, which Python has replaced by that of the alias."""
        module.__spec__ = self._spec


def _setting_attributes(
    load: Callable[[types.ModuleType], None],
) -> Callable[[types.ModuleType], None]:
    """A loader's exec_module that also sets tf.estimator."""

    def load_and_set(module: types.ModuleType) -> None:
        load(module)
        estimator_api.set_attributes(module)

    return load_and_set


def _without_early_lines(create: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A loader's create_module without lines that say nothing to a user."""

    def create_quietly(spec: Any) -> Any:
        with without_lines(_EARLY_LINES):
            return create(spec)

    return create_quietly


@contextlib.contextmanager
def without_lines(dropped: Sequence[bytes]) -> Iterator[None]:
    """Within: lines that C++ code writes to stderr are held back; those that contain one of
    `dropped` are not shown."""
    try:
        stderr = os.dup(2)
    except OSError:  # closed
        yield
        return
    with tempfile.TemporaryFile() as logged:
        os.dup2(logged.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            logged.seek(0)
            for line in logged:
                if not any(text in line for text in dropped):
                    os.write(2, line)


def _has_estimator(tensorflow_init: Optional[str]) -> bool:
    """Whether this TensorFlow has tf.estimator; also for what is no installed TensorFlow."""
    if not tensorflow_init:
        return True
    folder = Path(tensorflow_init).parent
    return not (folder / "python/distribute").is_dir() or (folder / _BELONGS_TO_ESTIMATOR).exists()


def _select_legacy_keras() -> None:
    if LEGACY_KERAS not in os.environ and importlib.util.find_spec("tf_keras") is not None:
        os.environ[LEGACY_KERAS] = "1"


def _load_triton() -> None:
    """Loads Triton, a part of PyTorch for GPUs, if it is installed.

    Python crashes if it is loaded after TensorFlow 2.21: both bring parts of LLVM.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("triton._C.libtriton")
