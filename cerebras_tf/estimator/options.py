"""Compiler options from the run configuration, and a warning of options without effect."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.config.run_options import EstimatorOptions
from cerebras_tf.console.log import log_info
from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.errors import ConfigError
from cerebras_tf.step import cluster


def compiler_options(config: Any, mode: str) -> Options:
    """The options of a model's compiler.

    Args:
        config: a CSRunConfig.

    Raises:
        ConfigError: memoryx_dir is set in pipelined mode.
    """
    streaming = EXECUTION_MODE.get() == "weight_streaming"
    on_files = config.memoryx_dir is not None
    if on_files and not streaming:
        raise ConfigError(
            "memoryx_dir: must be used in weight streaming mode. Received: pipeline mode. Start "
            "the run with python-ws, or remove memoryx_dir."
        )
    asked = getattr(config.cs_config, "use_cbfloat16", False)
    if asked and config.precision == "bfloat16" and mode == tf.estimator.ModeKeys.TRAIN:
        log_info("use_cbfloat16: uses precision bfloat16")
    return Options(
        streaming=streaming,
        staging=on_files,
        wafers=cluster.swarm_for(mode).size,
        strip=config.use_vsl is not False,
        restore=config.use_vsl is True,
        precision=config.precision,
        attention=config.attention_precision != "float32",
        keep_float32=config.keep_float32,
    )


def warn_of_ignored_options(config: Any) -> None:
    """Logs the options of a CSRunConfig that have no effect, once for each set of options."""
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
    tf.compat.v1.logging.warning("%s: no effect on the host", ", ".join(options))
