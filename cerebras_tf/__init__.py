"""Train TensorFlow Estimator models on an emulated wafer. Public names are loaded on first use.

Importing this package imports neither TensorFlow nor Numba, so that a command line answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from cerebras_tf.tf_compat import loading

__version__ = "0.1.0"

_PUBLIC = {
    "CerebrasEstimator": "cerebras_tf.estimator.estimator",
    "CSRunConfig": "cerebras_tf.estimator.run_config",
    "CSEstimatorSpec": "cerebras_tf.estimator.spec",
    "cross_wafer_sum": "cerebras_tf.capture.cross_wafer",
}
__all__ = ["CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator", "__version__", "cross_wafer_sum"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'cerebras_tf' has no attribute {name!r}")


def _open_streams() -> None:
    """Opens /dev/null as each standard stream that the process was started without.

    Otherwise the next file that is opened, such as a checkpoint, would get its number, and native
    libraries would log into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            mode = "w" if number else "r"
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


_open_streams()
loading.prepare()
