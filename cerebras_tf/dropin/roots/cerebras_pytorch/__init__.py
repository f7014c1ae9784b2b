"""The PyTorch import names of the original software, which a model zoo of 2022 looks for.

A loop that is written for them runs on the wafer: `module` and `optimizer` register what is
trained, `dataloader` yields the batches, and each iteration is recorded and run when the next one
begins. Values of tensors are known in functions that `core.cb_model.step_closure` decorates.
"""

from __future__ import annotations

from cerebras_pytorch import amp, core, data, nn, optim, utils
from cerebras_pytorch.platform import (
    Session,
    compile,
    dataloader,
    env,
    initialize,
    load,
    module,
    optimizer,
    save,
    state,
)

from cerebras.names import serve_names

__all__ = [
    "Session",
    "amp",
    "compile",
    "core",
    "data",
    "dataloader",
    "env",
    "initialize",
    "load",
    "module",
    "nn",
    "optim",
    "optimizer",
    "save",
    "state",
    "utils",
]

serve_names()
