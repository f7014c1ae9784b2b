"""The kernels of all ops. Importing this package fills the kernel tables.

Modules named compiled_* and codegen* are compiled by Numba; the others hold the plain kernels.
"""

from __future__ import annotations

import importlib
import pkgutil

from cerebras_tf.kernels.registry import COMPILED, PLAIN, KernelTable

# compiled_jit sets variables of the environment that Numba reads when it is imported.
for _name in ("compiled_jit", *(module.name for module in pkgutil.iter_modules(__path__))):
    importlib.import_module(f"{__name__}.{_name}")


def cpu_kernels() -> KernelTable:
    """The fastest kernels for this processor."""
    codegen = importlib.import_module(f"{__name__}.codegen")
    return KernelTable(PLAIN, COMPILED, codegen.FusedElementwise)
