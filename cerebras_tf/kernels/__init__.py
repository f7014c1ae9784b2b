"""What every op computes. Importing this package fills the kernel tables.

Files named compiled_* and codegen* need Numba; without it the plain kernels run, slower, with the
same numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from typing import Any, Callable, Optional

HAS_NUMBA = importlib.util.find_spec("numba") is not None

for _module in pkgutil.iter_modules(__path__):
    if HAS_NUMBA or not _module.name.startswith(("compiled_", "codegen")):
        importlib.import_module(f"{__name__}.{_module.name}")


def elementwise_compiler() -> Optional[Callable[[Any], Callable[..., Any]]]:
    """The function that compiles the body of a fused op; None without Numba."""
    if not HAS_NUMBA or importlib.util.find_spec(f"{__name__}.codegen") is None:
        return None
    compiler: Callable[[Any], Callable[..., Any]] = importlib.import_module(
        f"{__name__}.codegen"
    ).compile_elementwise
    return compiler
