"""How a model is compiled, by the run configuration and the way the program was started."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.console.log import say
from cerebras_tf.environment import execution_mode_from_environment
from cerebras_tf.errors import ConfigError
from cerebras_tf.step import cluster


def compiler_options(config: Any, mode: str) -> Options:
    """The options of a model's compiler.

    Args:
        config: a CSRunConfig.
        mode: a tf.estimator.ModeKeys.

    Raises:
        ConfigError: weights are to rest in files, and are not streamed.
    """
    streaming = execution_mode_from_environment() == "weight_streaming"
    on_files = config.memoryx_dir is not None
    if on_files and not streaming:
        raise ConfigError(
            "memoryx_dir: weights rest in files only where they are streamed layer by layer. "
            "Received: pipeline mode, which keeps all of them in memory. Start the run with "
            "python-ws, or leave memoryx_dir out."
        )
    asked = getattr(config.cs_config, "use_cbfloat16", False)
    if asked and config.precision == "bfloat16" and mode == tf.estimator.ModeKeys.TRAIN:
        say("use_cbfloat16 is taken as precision bfloat16, which processors here can have")
    return Options(
        streaming=streaming,
        staging=on_files,
        wafers=cluster.swarm_for(mode).size,
        strip=config.use_vsl is not False,
        restore=config.use_vsl is True,
        precision=config.precision,
        keep_float32=config.keep_float32,
    )
