"""The PyTorch API of release 2 of the original software, usually imported as `cstorch`.

A training loop that is written for it runs on the wafer:

    backend = cstorch.backend("CSX")
    model = cstorch.compile(model, backend)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=1e-3)

    @cstorch.trace
    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        return loss

    @cstorch.step_closure
    def show(loss):
        print(loss.item())

    loader = cstorch.utils.data.DataLoader(make_loader)
    for batch in cstorch.utils.data.DataExecutor(loader, num_steps=100):
        show(step(batch))

With `backend("CPU")` the same loop runs eagerly.
"""

from __future__ import annotations

from cerebras.pytorch import amp, core, distributed, metrics, nn, optim, utils
from cerebras.pytorch.platform import (
    Backend,
    add_debug_name,
    backend,
    checkpoint_closure,
    compile,
    current_executor,
    from_numpy,
    get_debug_name,
    load,
    make_constant,
    manual_seed,
    name_scope,
    save,
    set_debug_scope,
    step_closure,
    summarize_scalar,
    summarize_tensor,
    to_numpy,
    trace,
    use_cs,
)

__all__ = [
    "Backend",
    "add_debug_name",
    "amp",
    "backend",
    "checkpoint_closure",
    "compile",
    "compile_step",
    "core",
    "current_executor",
    "distributed",
    "from_numpy",
    "get_debug_name",
    "load",
    "make_constant",
    "manual_seed",
    "metrics",
    "name_scope",
    "nn",
    "optim",
    "save",
    "set_debug_scope",
    "step_closure",
    "summarize_scalar",
    "summarize_tensor",
    "to_numpy",
    "trace",
    "use_cs",
    "utils",
]

compile_step = trace
