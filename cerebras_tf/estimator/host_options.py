"""Tells which options of a run configuration have no effect where the host runs the model."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

# Options of a wafer alone, and values of them that say nothing.
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


def tell_of_host(config: Any) -> None:
    """Logs, once for each set of them, the options of a configuration that change nothing."""
    found = tuple(
        name for name, usual in _OF_WAFER.items() if getattr(config, name, usual[0]) not in usual
    )
    if found:
        by_it = getattr(getattr(config, "cs_config", None), "use_cbfloat16", False)
        shown = {"precision": "use_cbfloat16"} if by_it else {}
        _tell_once(tuple(shown.get(name, name) for name in found))


@functools.cache
def _tell_once(options: tuple[str, ...]) -> None:
    tf.compat.v1.logging.warning(
        "%s: no effect on the host, where TensorFlow has weights and activations in memory, in "
        "the model's own types",
        ", ".join(options),
    )
