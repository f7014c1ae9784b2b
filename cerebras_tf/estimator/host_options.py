"""Logs a warning for options of a run configuration that have no effect on the host."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from cerebras_tf.config.run_options import EstimatorOptions


def tell_of_host(config: Any) -> None:
    """Logs, once for each set of them, the options of a CSRunConfig that change nothing."""
    by_cs_config = getattr(config.cs_config, "use_cbfloat16", False)
    found = tuple(
        "use_cbfloat16" if each.name == "precision" and by_cs_config else each.name
        for each in dataclasses.fields(EstimatorOptions)
        if "on_wafer" in each.metadata
        and getattr(config, each.name) not in each.metadata["on_wafer"]
    )
    if found:
        _warn_once(found)


@functools.cache
def _warn_once(options: tuple[str, ...]) -> None:
    tf.compat.v1.logging.warning(
        "%s: no effect on the host, where TensorFlow has weights and activations in memory, in "
        "the model's own types",
        ", ".join(options),
    )
