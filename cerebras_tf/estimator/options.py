"""Options that follow from the run configuration: the compiler's, and those without effect."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.console.log import say
from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.errors import ConfigError
from cerebras_tf.step import cluster


def compiler_options(config: Any, mode: str) -> Options:
    """The options of a model's compiler.

    Args:
        config: a CSRunConfig or RunConfig.
        mode: a tf.estimator.ModeKeys.

    Raises:
        ConfigError: memoryx_dir is set in pipelined mode.
    """
    streaming = EXECUTION_MODE.get() == "weight_streaming"
    on_files = getattr(config, "memoryx_dir", None) is not None
    if on_files and not streaming:
        raise ConfigError(
            "memoryx_dir: needs weight streaming mode. "
            "Received: pipeline mode, which keeps all weights in memory. Start the run with "
            "python-ws, or leave memoryx_dir out."
        )
    use_vsl = getattr(config, "use_vsl", None)
    precision = getattr(config, "precision", "float32")
    asked = getattr(getattr(config, "cs_config", None), "use_cbfloat16", False)
    if asked and precision == "bfloat16" and mode == tf.estimator.ModeKeys.TRAIN:
        say("use_cbfloat16: runs as precision bfloat16")
    return Options(
        streaming=streaming,
        staging=on_files,
        wafers=cluster.swarm_for(mode).size,
        strip=use_vsl is not False,
        restore=use_vsl is True,
        precision=precision,
        keep_float32=getattr(config, "keep_float32", ()),
    )


# Options that only the wafer has, with the values that mean nothing is set.
_OF_WAFER = {
    "memoryx_dir": (None,),
    "memoryx_ram_gb": (None,),
    "memoryx_moment_dtype": (None,),
    "wafer_memory_gb": (None,),
    "micro_batches": (1,),
    "precision": (None, "float32"),
    "use_vsl": (None, False),
    "num_threads": (None,),
    "multireplica": (False,),
}


def warn_of_ignored_options(config: Any) -> None:
    """Logs a warning about options without effect on the host, once for each set of them."""
    found = tuple(
        name for name, usual in _OF_WAFER.items() if getattr(config, name, usual[0]) not in usual
    )
    if found:
        by_it = getattr(getattr(config, "cs_config", None), "use_cbfloat16", False)
        shown = {"precision": "use_cbfloat16"} if by_it else {}
        _warn_once(tuple(shown.get(name, name) for name in found))


@functools.cache
def _warn_once(options: tuple[str, ...]) -> None:
    tf.compat.v1.logging.warning(
        "%s: no effect on the host, where TensorFlow keeps weights and activations in memory",
        ", ".join(options),
    )
