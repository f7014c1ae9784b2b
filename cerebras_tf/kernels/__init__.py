"""What every op computes. Importing this package fills the kernel tables.

Files named compiled_* and codegen* need Numba; without it the plain kernels run, slower, with the
same numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

from cerebras_tf.kernels.registry import COMPILED, PLAIN, KernelTable

HAS_NUMBA = importlib.util.find_spec("numba") is not None

for _module in pkgutil.iter_modules(__path__):
    if HAS_NUMBA or not _module.name.startswith(("compiled_", "codegen")):
        importlib.import_module(f"{__name__}.{_module.name}")


def cpu_kernels() -> KernelTable:
    """The fastest kernels there are on this machine: compiled ones where Numba is installed."""
    if not HAS_NUMBA:
        return KernelTable(PLAIN, COMPILED)
    codegen = importlib.import_module(f"{__name__}.codegen")
    return KernelTable(PLAIN, COMPILED, codegen.compile_elementwise)
