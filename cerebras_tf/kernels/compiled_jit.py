"""How kernels are compiled: Numba's options, and the folder of compiled code.

It must be imported before Numba.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import numpy as np

from cerebras_tf.environment import NUMBA_CACHE_DIR, user_cache_folder
from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels import cache_files
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


def _choose_cache_folder() -> Optional[Path]:
    """A folder for this version in $NUMBA_CACHE_DIR or the user's cache, else a temporary one.

    None if that cannot be created either.
    """
    name = f"kernels-{_source_digest()}"
    try:
        base = NUMBA_CACHE_DIR.get() or os.path.join(user_cache_folder(), "cerebras_tf")
        # A child process inherits the variable as set below.
        folder = Path(os.path.abspath(base))
        folder = folder if folder.name == name else folder / name
        why = cache_files.use_folder(folder)
        if not why:
            return folder
        received = f"{folder}: {why}."
    except ConfigError as error:  # a relative path
        received = f"{error}"
    warnings.warn(
        f"compiled kernels: the cache folder must be writable, and only for you. Received: "
        f"{received} Kernels are compiled again in every run. Set {_ENVIRONMENT} to another "
        "folder.",
        RuntimeWarning,
        stacklevel=2,
    )
    try:
        base = tempfile.mkdtemp(prefix="cerebras_tf-")
    except OSError:
        return None
    atexit.register(cache_files.remove_folder, Path(base))
    folder = Path(base) / name
    folder.mkdir(mode=0o700)
    return folder


# Folder of compiled kernels; None if none is writable.
CACHE_FOLDER = _choose_cache_folder()
if CACHE_FOLDER is not None:
    os.environ[_ENVIRONMENT] = str(CACHE_FOLDER)

# Numba would set up the terminal's colours thousands of times where colorama is installed.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

import numba  # noqa: E402  (reads the environment when imported)
from llvmlite import binding as llvm  # noqa: E402
from numba.core import caching, compiler, registry, typed_passes  # noqa: E402
from numba.core.codegen import JITCodeLibrary  # noqa: E402
from numba.core.compiler_machinery import register_pass  # noqa: E402
from numba.core.runtime import rtsys  # noqa: E402
from numba.core.serialize import dumps  # noqa: E402

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


class _CacheFiles:
    """One file per signature. Numba's own index files lose entries if processes write at once."""

    def __init__(self, base: str) -> None:
        self._base = base

    def _path(self, text: str) -> Path:
        assert CACHE_FOLDER is not None
        return CACHE_FOLDER / f"{self._base}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.nbc"

    def save(self, key: Any, data: Any) -> None:
        text = repr(key)
        cache_files.write(self._path(text), dumps((text, numba.__version__, data)))

    def load(self, key: Any) -> Any:
        """The data of a key; None if the cache does not have it."""
        text = repr(key)
        content = cache_files.read(self._path(text))
        if content is None:
            return None
        stored, version, data = pickle.loads(content)
        return data if (stored, version) == (text, numba.__version__) else None


class _Cache(caching.FunctionCache):
    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _CacheFiles(self._impl.filename_base)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code of a signature; None if the cache does not have it.

        Numba's method first loads everything that compilation needs, which takes 0.3 s.
        """
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            cache_files.warn_unwritable(error)


class _LinkedLibrary(JITCodeLibrary):
    """LLVM IR of a function that only other compiled functions call.

    Callers link and inline it. Machine code of the function alone would never run, so none is made.
    """

    @classmethod
    def from_bitcode(cls, codegen: Any, name: str, bitcode: bytes) -> _LinkedLibrary:
        library = cls(codegen, name)
        library._final_module = library._shared_module = llvm.parse_bitcode(bitcode)
        library._finalized = True
        return library

    def _optimize_final_module(self) -> None:
        """Simplifies the code; callers optimize what they link.

        Optimizing at each level of calls would do the same work again: attention and its
        derivatives took 75 s of processor time instead of 45 on an AMD EPYC (Zen 4).
        """
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=self._codegen._loopvect,
            slp_vectorize=False,
            opt=self._codegen._opt_level,
            cost="cheap",
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """What Numba stores of the library in the cache."""
        self._ensure_finalized()
        return self.name, "bitcode", self._get_module_for_linking().as_bitcode()


class _LinkedFunction:
    """What callers know a linked function by, instead of one that Python can call."""


def _insert_function(target: Any, description: Any, library: _LinkedLibrary) -> _LinkedFunction:
    """Makes a linked function known to the lowering of its callers."""
    function = _LinkedFunction()
    target.insert_user_function(function, description, [library])
    return function


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(typed_passes.NativeLowering):
    _name = "linked_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        function = _insert_function(state.targetctx, state.cr.fndesc, state.library)
        state.cr = state.cr._replace(cfunc=function)
        return True


class _LinkedCompiler(compiler.CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (_LinkedLowering if each is typed_passes.NativeLowering else each, description)
            for each, description in passes.passes
        ]
        passes.finalize()
        return [passes]


class _LinkedImplementation(_Implementation):
    def rebuild(self, target_context: Any, payload: Any) -> Any:
        (name, _, bitcode), description, environment, signature, *_ = payload
        library = _LinkedLibrary.from_bitcode(target_context.codegen(), name, bitcode)
        return compiler.compile_result(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=library,
            environment=environment,
            entry_point=_insert_function(target_context, description, library),
            fndesc=description,
            signature=signature,
            objectmode=False,
            lifted=(),
        )


class _LinkedCache(_Cache):
    _impl_class = _LinkedImplementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # The same function compiled for Python has other files.
        self._cache_file = _CacheFiles(f"{self._impl.filename_base}-linked")


class _LinkedDispatcher(registry.CPUDispatcher):
    """A function for compiled callers; for calls from Python it is compiled once more."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        super().__init__(
            function, targetoptions={**options, **wrappers}, pipeline_class=_LinkedCompiler
        )
        self._options = options
        self._for_python: Any = None

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres

    def __call__(self, *args: Any) -> Any:
        if self._for_python is None:
            self._for_python = _for_python(
                self.py_func, self._options, not isinstance(self._cache, caching.NullCache)
            )
        return self._for_python(*args)


def _for_python(function: Callable[..., Any], options: dict[str, Any], cache: bool) -> Any:
    dispatcher = registry.CPUDispatcher(
        function, targetoptions={**options, "no_cfunc_wrapper": True}
    )
    if cache:
        dispatcher._cache = _Cache(function)
    return dispatcher


def jit(
    *, any_order: bool = False, cache: bool = True, python: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: compiles a kernel on its first call, without the GIL, cached on disk.

    Args:
        any_order: allow sums in any order, which vectorises reductions.
        cache: store the compiled code; False if the function has no file.
        python: whether Python calls the function, and not the work queue or another kernel. All
            functions can be called in both ways, but then are compiled twice.
    """
    options = {
        "nopython": True,
        "nogil": True,
        "fastmath": ANY_ORDER if any_order else EXACT_ORDER,
        "error_model": "numpy",
        "boundscheck": False,
    }

    def compiled(function: Callable[..., Any]) -> Any:
        stored = cache and CACHE_FOLDER is not None
        if python:
            return _for_python(function, options, stored)
        dispatcher = _LinkedDispatcher(function, options)
        if stored:
            dispatcher._cache = _LinkedCache(function)
        return dispatcher

    return compiled


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator: a function that LLVM inlines into kernels, with the order of its own sums kept."""
    options = {
        "nopython": True,
        "forceinline": True,
        "fastmath": EXACT_ORDER,
        "error_model": "numpy",
        "boundscheck": False,
    }
    return _LinkedDispatcher(function, options)
