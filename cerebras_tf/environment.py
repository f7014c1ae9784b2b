"""Environment variables that the package reads."""

from __future__ import annotations

import os

from cerebras_tf.errors import ConfigError

EXECUTION_MODE_VARIABLE = "CEREBRAS_EXECUTION_MODE"
EXECUTION_MODES = ("weight_streaming", "pipeline")


def execution_mode_from_environment() -> str:
    """Returns "weight_streaming" (the default) or "pipeline", as the launcher asked for.

    Raises:
      ConfigError: the environment variable holds another word.
    """
    mode = os.environ.get(EXECUTION_MODE_VARIABLE) or EXECUTION_MODES[0]
    if mode not in EXECUTION_MODES:
        raise ConfigError(
            f"environment variable {EXECUTION_MODE_VARIABLE}: must be weight_streaming or "
            f"pipeline. Received: {mode!r}. Unset it, or start the run with python-ws (weight "
            "streaming) or python (pipeline) under csrun_wse."
        )
    return mode
