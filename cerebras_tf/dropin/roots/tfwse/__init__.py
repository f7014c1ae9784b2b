"""An empty module that can be imported in weight streaming mode only, as in the original software.

The launcher sets the mode by an environment variable.
"""

from __future__ import annotations

from cerebras_tf.environment import EXECUTION_MODE

if EXECUTION_MODE.get() != "weight_streaming":
    raise ModuleNotFoundError(
        "tfwse: must be imported in weight streaming mode. Received: pipelined mode. Start the run "
        "with python-ws.",
        name="tfwse",
    )
