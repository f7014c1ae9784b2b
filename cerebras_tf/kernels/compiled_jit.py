"""How kernels are compiled: Numba's options, and the folder of compiled code.

It must be imported before Numba.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import numpy as np

from cerebras_tf.environment import NUMBA_CACHE_DIR, XDG_CACHE_HOME
from cerebras_tf.kernels.instruction_set import llvm_features

_ENVIRONMENT = NUMBA_CACHE_DIR.name
# NaN and Inf must propagate, which rules out fastmath=True. Sums may be reordered where a kernel
# allows it; elsewhere only multiply and add may contract to one instruction.
EXACT_ORDER = {"contract"}
ANY_ORDER = {"contract", "reassoc", "nsz", "arcp"}


def _source_digest() -> str:
    """Digest of the sources of compiled kernels, and of the release of NumPy.

    Numba invalidates a kernel when its own file, Python or Numba changes, not when a file that it
    inlines from does.
    """
    digest = hashlib.sha256(np.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("co*.py")):
        if path.name.startswith(("compiled_", "codegen")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _choose_cache_folder() -> Optional[Path]:
    """A folder for this version in $NUMBA_CACHE_DIR or the user's cache; None: not writable."""
    base = NUMBA_CACHE_DIR.get()
    if base is None:
        home = XDG_CACHE_HOME.get() or os.path.join(os.path.expanduser("~"), ".cache")
        base = os.path.join(home, "cerebras_tf")
    name = f"kernels-{_source_digest()}"
    # A child process inherits the variable as set below.
    folder = Path(base) if Path(base).name == name else Path(base) / name
    if _writable(folder):
        return folder
    warnings.warn(
        f"compiled kernels: the cache folder must be writable. Received: {folder}. Kernels are "
        f"compiled again in every process. Set {_ENVIRONMENT} to a writable folder.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


# Folder of compiled kernels and generated sources; None if none is writable.
CACHE_FOLDER = _choose_cache_folder()
if CACHE_FOLDER is not None:
    os.environ[_ENVIRONMENT] = str(CACHE_FOLDER)

import numba  # noqa: E402  (reads the environment when imported)
from numba.core import caching  # noqa: E402

if CACHE_FOLDER is not None:
    numba.config.CACHE_DIR = str(CACHE_FOLDER)
if numba.config.CPU_FEATURES is None:
    numba.config.CPU_FEATURES = llvm_features()


class _Locator(caching._CacheLocator):
    """Finds a kernel's code by the digest of all sources, wherever their files are.

    Numba's own locators look for the path and the time of the file, so that a second checkout
    would compile again.
    """

    def __init__(self, line: int) -> None:
        self._line = line

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func.__code__.co_firstlineno)

    def get_cache_path(self) -> str:
        return str(CACHE_FOLDER)

    def get_source_stamp(self) -> str:
        assert CACHE_FOLDER is not None
        return CACHE_FOLDER.name

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]


class _Cache(caching.FunctionCache):
    _impl_class = _Implementation


def jit(*, any_order: bool = False, cache: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: compiles a kernel on its first call, without the GIL, cached on disk.

    Args:
        any_order: allow sums in any order, which vectorises reductions.
        cache: store the machine code; False if the function has no file.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(
            nogil=True,
            fastmath=ANY_ORDER if any_order else EXACT_ORDER,
            error_model="numpy",
            boundscheck=False,
        )(function)
        if cache and CACHE_FOLDER is not None:
            dispatcher._cache = _Cache(function)
        return dispatcher

    return compiled


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator: a function that LLVM inlines into kernels, with the order of its own sums kept."""
    return numba.njit(
        forceinline=True, fastmath=EXACT_ORDER, error_model="numpy", boundscheck=False
    )(function)
