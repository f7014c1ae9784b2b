"""A module without contents: that it can be imported says that weight streaming is on.

In pipelined execution the import fails, as it did in the original's pipelined environment. The
launcher chooses, through an environment variable.
"""

from __future__ import annotations

from cerebras_tf.environment import EXECUTION_MODE

if EXECUTION_MODE.get() != "weight_streaming":
    raise ModuleNotFoundError(
        "tfwse: can be imported in weight-streaming execution only. Received: pipelined "
        "execution. Start the run with python-ws to stream weights.",
        name="tfwse",
    )
