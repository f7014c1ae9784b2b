"""CSRunConfig: tf.estimator's run configuration and the options of the wafer."""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import os
import textwrap
import typing
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.replacement import without_deprecation_warnings
from cerebras_tf.config import schema
from cerebras_tf.config.address import check_wafer_address, normalize_cs_ip
from cerebras_tf.config.run_options import EstimatorOptions
from cerebras_tf.errors import ConfigError
from cerebras_tf.runtime.capacity import available_bytes
from cerebras_tf.swarmx import job

__all__ = ["CSRunConfig", "as_cs_run_config", "check_wafer_address", "refuse_strategies"]

_POSITIONAL = ("cs_ip", "system_name", "cs_config", "stack_params", "num_csx")
_FIELDS = {each.name: each for each in dataclasses.fields(EstimatorOptions)}
_HINTS = typing.get_type_hints(EstimatorOptions)
_NAMES = (*_POSITIONAL, *(name for name in _FIELDS if name not in _POSITIONAL))


def refuse_strategies(config: tf.estimator.RunConfig) -> None:
    """Raises ConfigError if a strategy or a cluster would replicate a model on the wafer."""
    is_ours = isinstance(config, CSRunConfig)
    if is_ours and config.cluster_spec and config.credentials_path is not None:
        raise ConfigError(
            "cs_ip: a wafer at an address cannot be combined with a cluster. Received: one in "
            "TF_CONFIG. Unset it, or remove cs_ip and credentials_path."
        )
    for key, strategy in (
        ("train_distribute", config.train_distribute),
        ("eval_distribute", config.eval_distribute),
    ):
        if strategy is not None:
            raise ConfigError(
                f"runconfig: {key} must be None on the wafer. Received: {type(strategy).__name__}. "
                "Remove it, or train on the host (use_cs=False)."
            )


class CSRunConfig(tf.estimator.RunConfig):
    """`tf.estimator.RunConfig` with the options of the wafer.

    Example:
      `config = CSRunConfig(model_dir="model_dir", save_checkpoints_steps=100, num_threads=8)`

    Args:
      {arguments}
      **kwargs: every argument of `tf.estimator.RunConfig`.

    Raises:
      ConfigError: an option is of another type or value; all are listed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(_POSITIONAL):
            raise TypeError(
                f"CSRunConfig: takes at most {len(_POSITIONAL)} positional arguments. Received: "
                f"{len(args)}. Pass the others by name."
            )
        job.cluster()  # TF_CONFIG, which RunConfig reads
        own = dict(zip(_POSITIONAL, args))
        own.update((name, kwargs.pop(name)) for name in _NAMES if name in kwargs)
        with without_deprecation_warnings():
            super().__init__(**kwargs)
        if own.get("num_csx") is None:
            own["num_csx"] = getattr(own.get("cs_config"), "num_csx", 1)
        self._options = _checked(own)

    def replace(self, **kwargs: Any) -> CSRunConfig:
        """Returns a copy with some fields changed: RunConfig's replaceable fields and ours.

        tf.estimator calls `RunConfig.replace` directly. Our fields are kept then too, because it
        makes a deep copy.
        """
        own = {name: kwargs.pop(name) for name in _NAMES if name in kwargs}
        replaced: CSRunConfig = super().replace(**kwargs)
        replaced._options = _checked({**vars(self._options), **own})
        return replaced

    @property
    def precision(self) -> str:
        """The precision; by default that of `cs_config`."""
        return self._options.resolved_precision

    @property
    def stack_params(self) -> dict[str, Any]:
        """Compiler settings as given; empty by default."""
        return self._options.stack_params or {}

    @property
    def memoryx_bytes(self) -> int:
        """`memoryx_ram_gb` in bytes; by default half of the free memory."""
        given = self._options.memoryx_ram_gb
        return available_bytes() // 2 if given is None else int(given * 1e9)


def as_cs_run_config(config: tf.estimator.RunConfig) -> Any:
    """Returns a CSRunConfig with the fields of any RunConfig, and defaults for the others.

    Overrides of a subclass of RunConfig are kept.
    """
    if isinstance(config, CSRunConfig):
        return config
    given: Any = type(config)
    kind: Any = CSRunConfig
    if given is not tf.estimator.RunConfig:
        kind = type(given.__name__, (given, CSRunConfig), {})
    made = kind.__new__(kind)
    made.__dict__.update(vars(config), _options=_checked({}))
    return made


def _checked(given: Mapping[str, Any]) -> EstimatorOptions:
    """Builds the options from arguments.

    Raises:
      ConfigError: with every mistake found, one a line.
    """
    report = schema.Report("CSRunConfig")
    plain = {name: _plain(name, value) for name, value in given.items()}
    for name, value in plain.items():
        takes_text = any(kind in _FIELDS[name].type for kind in ("str", "Any"))
        if isinstance(value, str) and not takes_text:  # the schema would read "2" as 2
            report.add(name, f"{name} must be {schema.type_words(_HINTS[name])}.", value)
    if report.messages:
        raise ConfigError(report.text())
    options: EstimatorOptions = schema.build(EstimatorOptions, plain, report)
    if report.messages:
        raise ConfigError(report.text())
    folder = options.memoryx_dir
    return dataclasses.replace(
        options,
        cs_ip=normalize_cs_ip(options.cs_ip),
        num_csx=_wafers(options.num_csx),
        memoryx_dir=None if folder is None else os.path.abspath(folder),
    )


def _plain(name: str, value: Any) -> Any:
    """Returns an argument as the schema takes it: plain numbers, paths and names of dtypes."""
    if isinstance(value, tf.DType):
        return value.name
    if isinstance(value, (bytes, os.PathLike)):
        return os.fsdecode(value)
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if name == "keep_float32" and isinstance(value, str):
        return (value,)
    return value


def _wafers(num_csx: Optional[int]) -> int:
    """The number of wafers; 1 is that of the launcher's processes."""
    wafers = job.wafers()
    if num_csx in (None, 1):
        return wafers
    assert num_csx is not None
    if num_csx % wafers:
        raise ConfigError(
            f"num_csx: must be a multiple of the {wafers} processes of this job. Received: "
            f"{num_csx}. Start with csrun_wse --num_csx {num_csx}, or set num_csx to 1 to use the "
            "launcher's number."
        )
    return num_csx


def _own_property(name: str) -> property:
    return property(lambda self: getattr(self._options, name), doc=_FIELDS[name].metadata["text"])


def _document() -> None:
    """Gives the class the properties, signature and docstring that follow from its options."""
    kinds = inspect.Parameter
    parameters = [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
    texts = []
    for name in _NAMES:
        each = _FIELDS[name]
        kind = kinds.POSITIONAL_OR_KEYWORD if name in _POSITIONAL else kinds.KEYWORD_ONLY
        parameters.append(kinds(name, kind, default=each.default, annotation=each.type))
        text = f"{name}: {each.metadata['text'].replace('null', 'None')}"
        texts.append(textwrap.fill(text, 100, initial_indent=" " * 2, subsequent_indent=" " * 4))
        if name not in vars(CSRunConfig):
            setattr(CSRunConfig, name, _own_property(name))
    parameters.append(kinds("kwargs", kinds.VAR_KEYWORD))
    constructor: Any = CSRunConfig.__init__
    constructor.__signature__ = inspect.Signature(parameters)
    template = inspect.cleandoc(CSRunConfig.__doc__ or "")
    CSRunConfig.__doc__ = template.replace("  {arguments}", "\n".join(texts))


_document()
