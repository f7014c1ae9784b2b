"""Names and defaults of TensorFlow 2.2 for scripts that the launchers start.

Scripts for the original platform were written for TensorFlow 2.2. What changed since then and is
needed by such scripts is provided here, on TensorFlow 2.15 to 2.21. Without `activate()` nothing
changes.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Optional

_OLD_KERAS = "tensorflow.python.keras"
_PREPROCESSING = "keras_preprocessing"
_ZOO, _OWN_FOLDER = "modelzoo", Path(__file__).resolve().parents[2]
_PROPERTIES = ("compute_dtype", "dtype_policy", "variable_dtype")


def activate() -> None:
    """Provides the names, now or when the modules that they belong to are imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Finds modules that are changed when they are loaded, and those that have another place."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Any = None
    ) -> Optional[ModuleSpec]:
        """Returns the spec of these modules, and None for others."""
        if fullname == _ZOO:
            return _other_model_zoo()
        if fullname.partition(".")[0] == _PREPROCESSING:
            found = PathFinder.find_spec(fullname, path)
            return found or ModuleSpec(fullname, self, is_package=fullname == _PREPROCESSING)
        change = _CHANGES.get(fullname)
        if change is None:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = next((spec for each in others if (spec := each.find_spec(fullname, path))), None)
        if found is not None and found.loader is not None:
            vars(found.loader)["exec_module"] = _then(found.loader.exec_module, change)
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        """Replaces a module of keras_preprocessing, which is not installed, by Keras' own."""
        name = module.__name__.replace(_PREPROCESSING, "tensorflow.keras.preprocessing", 1)
        sys.modules[module.__name__] = importlib.import_module(name)


def _then(
    load: Callable[[types.ModuleType], None], change: Callable[[Any], None]
) -> Callable[[types.ModuleType], None]:
    """A loader's exec_module that also changes the module."""

    def load_and_change(module: types.ModuleType) -> None:
        load(module)
        change(module)

    return load_and_change


def _other_model_zoo() -> Optional[ModuleSpec]:
    """The spec of a package modelzoo that is not ours; it is the script's, and comes first.

    A folder without an `__init__.py`, such as a clone of a repository, is no package.
    """
    others = [each for each in sys.path if Path(each or ".").resolve() != _OWN_FOLDER]
    found = PathFinder.find_spec(_ZOO, others)
    return found if found is not None and found.origin is not None else None


def _change_tensorflow(tensorflow: Any) -> None:
    """Makes layers of tensorflow.python.keras those of tf.keras, as they were."""
    old = importlib.import_module(f"{_OLD_KERAS}.layers")
    names = {name for name in vars(old) if callable(getattr(old, name)) and name[0] != "_"}
    for name in names:
        delattr(old, name)

    def of_keras(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {old.__name__!r} has no attribute {name!r}")
        return getattr(tensorflow.keras.layers, name)

    vars(old)["__getattr__"] = of_keras
    mixed_precision = importlib.import_module(f"{_OLD_KERAS}.mixed_precision")
    optimizers = types.ModuleType(f"{mixed_precision.__name__}.experimental.loss_scale_optimizer")
    vars(optimizers)["LossScaleOptimizer"] = LossScaleOptimizer
    _add_submodule(mixed_precision, "experimental", loss_scale_optimizer=optimizers)
    sys.modules[optimizers.__name__] = optimizers


def _add_submodule(parent: types.ModuleType, name: str, **content: Any) -> None:
    module = types.ModuleType(f"{parent.__name__}.{name}")
    vars(module).update(content, __path__=[])
    setattr(parent, name, module)
    sys.modules[module.__name__] = module


def _change_mixed_precision(module: Any) -> None:
    """Adds the experimental names, which later became those of the module."""
    policy = vars(module).get("Policy")  # keras.api._v1 has none
    if not getattr(policy, "__module__", "").endswith(".src.mixed_precision.policy"):
        return  # Keras 3
    _add_submodule(
        module,
        "experimental",
        LossScaleOptimizer=LossScaleOptimizer,
        Policy=_policy(policy),
        global_policy=module.global_policy,
        set_policy=module.set_global_policy,
    )


@functools.cache
def _policy(base: Any) -> Any:
    class Policy(base):
        """A dtype policy. `loss_scale` only had a meaning for `Model.compile`.

        Raises:
            NotImplementedError: loss_scale is a value that Model.compile would not use.
        """

        def __init__(self, name: str, loss_scale: Any = "auto") -> None:
            if loss_scale not in (None, "auto") and (loss_scale, name) != (
                "dynamic",
                "mixed_float16",
            ):
                raise NotImplementedError(
                    "Policy: loss_scale must be None or 'auto', or 'dynamic' for mixed_float16. "
                    f"Received: {loss_scale!r} for {name}. Use a LossScaleOptimizer."
                )
            super().__init__(name)

    return Policy


class _OfKeras(type):
    """The class of a class whose instances are those of tf.keras' class of the same name."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(
            instance, sys.modules["tensorflow"].keras.mixed_precision.LossScaleOptimizer
        )


class LossScaleOptimizer(metaclass=_OfKeras):
    """Makes the LossScaleOptimizer of tf.keras from the arguments of TensorFlow 2.2.

    Args:
        optimizer: an optimizer of tf.keras.
        loss_scale: "dynamic", a number, or an object of TensorFlow's FixedLossScale or
            DynamicLossScale.

    Raises:
        NotImplementedError: loss_scale is something else.
    """

    def __new__(cls, optimizer: Any, loss_scale: Any) -> Any:
        """Returns tf.keras' own."""
        make = sys.modules["tensorflow"].keras.mixed_precision.LossScaleOptimizer
        kind, config = type(loss_scale).__name__, {}
        if kind in ("FixedLossScale", "DynamicLossScale"):
            config = loss_scale.get_config()
        if kind == "DynamicLossScale" and config["multiplier"] == 2:
            return make(
                optimizer,
                initial_scale=config["initial_loss_scale"],
                dynamic_growth_steps=config["increment_period"],
            )
        fixed = config.get("loss_scale_value", loss_scale)
        if isinstance(fixed, (int, float)):
            return make(optimizer, dynamic=False, initial_scale=fixed)
        if loss_scale != "dynamic":
            raise NotImplementedError(
                "LossScaleOptimizer: loss_scale must be 'dynamic', a number, a FixedLossScale, or "
                f"a DynamicLossScale with multiplier 2. Received: {loss_scale!r}. Use one of them."
            )
        return make(optimizer)


def _change_layers(base_layer: Any) -> None:
    """Lets layers assign the properties that were no attributes of Keras' layers."""
    for name in _PROPERTIES:
        setattr(base_layer.Layer, name, _assignable(name, getattr(base_layer.Layer, name)))


def _assignable(name: str, original: Any) -> property:
    def assign(layer: Any, value: Any) -> None:
        if value != original.fget(layer):
            # Keras replaces the text of an AttributeError.
            raise ValueError(
                f"{layer.name}: {name} must be that of the layer's dtype policy, "
                f"{original.fget(layer)}. Received: {value}. Give the layer another dtype, or the "
                "attribute another name."
            )

    return original.setter(assign)


def _change_random_generator(backend: Any) -> None:
    """Makes an initializer without a seed draw anew in each call."""
    generator = getattr(backend, "RandomGenerator", None)
    if generator is None:  # Keras 3
        return
    create = generator.__init__

    @functools.wraps(create)
    def create_stateful(self: Any, seed: Any = None, rng_type: Any = None, **kwargs: Any) -> None:
        if seed is None and rng_type == generator.RNG_STATELESS:
            rng_type = generator.RNG_LEGACY_STATEFUL
        create(self, seed, rng_type, **kwargs)

    generator.__init__ = create_stateful
    warnings.filterwarnings("ignore", "The initializer .* is unseeded and being called multiple")


def _change_convolution(rank: int, module: Any) -> None:
    """Takes positional arguments in the order without `groups`, which came before `activation`."""
    layer = getattr(module, f"Conv{rank}D")
    create, before = layer.__init__, 6

    @functools.wraps(create)
    def create_in_order(self: Any, *arguments: Any, **kwargs: Any) -> None:
        if len(arguments) > before and not isinstance(arguments[before], int):
            arguments = (*arguments[:before], 1, *arguments[before:])
        create(self, *arguments, **kwargs)

    layer.__init__ = create_in_order


def _change_json_format(module: Any) -> None:
    """Takes the argument by which default values were left out; today they always are."""
    for name in ("MessageToDict", "MessageToJson"):
        setattr(module, name, _without_defaults(getattr(module, name)))


def _without_defaults(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def convert(message: Any, *arguments: Any, **kwargs: Any) -> Any:
        if kwargs.get("including_default_value_fields") is False:
            del kwargs["including_default_value_fields"]
        return original(message, *arguments, **kwargs)

    return convert


_KERAS_CHANGES: dict[str, Callable[[Any], None]] = {
    "google.protobuf.json_format": _change_json_format,
    "backend": _change_random_generator,
    "engine.base_layer": _change_layers,
    **{
        f"layers.convolutional.conv{rank}d": functools.partial(_change_convolution, rank)
        for rank in (1, 2, 3)
    },
}
_CHANGES: dict[str, Callable[[Any], None]] = {
    "google.protobuf.json_format": _change_json_format,
    "tensorflow": _change_tensorflow,
    "tensorflow.keras.mixed_precision": _change_mixed_precision,
}
for _keras in ("keras", "tf_keras"):
    _CHANGES.update({f"{_keras}.src.{name}": change for name, change in _KERAS_CHANGES.items()})
    for _api in ("api._v1.keras.", "api._v2.keras.", ""):
        _CHANGES[f"{_keras}.{_api}mixed_precision"] = _change_mixed_precision
