"""The PyTorch import names of the original software, which a model zoo of 2022 looks for.

A loop that is written for them runs on the wafer: `module` and `optimizer` register what is
trained, `dataloader` yields the batches, and each iteration is recorded and run when the next one
begins. Values of tensors are known in functions that `core.cb_model.step_closure` decorates.

The names of release 2 are those of cerebras.pytorch.
"""

from __future__ import annotations

from typing import Any

from cerebras_pytorch import amp, core, data, optim, utils
from cerebras_pytorch.platform import (
    Session,
    compile,
    dataloader,
    env,
    initialize,
    module,
    optimizer,
    state,
)

from cerebras import pytorch as _release_2

__all__ = [
    *_release_2.__all__,
    "Session",
    "amp",
    "compile",
    "core",
    "data",
    "dataloader",
    "env",
    "initialize",
    "module",
    "optim",
    "optimizer",
    "state",
    "utils",
]


def __getattr__(name: str) -> Any:
    if name not in _release_2.__all__:
        raise AttributeError(
            f"cerebras_pytorch: a name must be one that cerebras_tf provides. Received: {name}. "
            "docs/guides/cerebras-pytorch.md lists them."
        )
    return getattr(_release_2, name)
