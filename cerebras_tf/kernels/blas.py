"""GEMM on all threads: dispatch to OpenBLAS, the AVX-512 kernels, or kernels without packing.

OpenBLAS comes as a wheel (scipy-openblas32), newer than the one inside NumPy: 5 to 10 % faster on a
Zen 4, and it can add into a result (beta = 1). It runs single-threaded; rows or columns of a
product are split over the kernels' threads. Without the wheel NumPy's matmul is used. Larger
float32 products run on our AVX-512 kernels (compiled_avx512_gemm.py) where these were measured to
be faster.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np

from cerebras_tf import environment
from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels.compiled_avx512_gemm import (
    MR,
    NR,
    WORKSPACE_STRIDE,
    gemm_k_range,
    gemm_range,
)
from cerebras_tf.kernels.compiled_blas import PLAIN, ROW_MAJOR, TRANSPOSED, parallel_sgemm, sgemm
from cerebras_tf.kernels.compiled_threads import num_threads, parallel_chunks, parallel_tasks
from cerebras_tf.kernels.compiled_unpacked_gemm import (
    batched_gemv,
    is_batched_gemv,
    is_skinny,
    skinny_gemm,
)
from cerebras_tf.kernels.instruction_set import features
from cerebras_tf.kernels.scratch import borrow, round_up

# The backend of larger float32 products. By default the AVX-512 kernels on processors where they
# were measured, Intel's with AVX-512 and the Zen 4. On a Xeon with AMX and two threads, 2424 rows
# from memory times 256 x 256 to 256 x 6000 run at 1.10 to 1.14 times OpenBLAS's speed, gradients of
# such layers at 1.00 to 1.14, layers of GPT-2 small at 0.95 to 1.04. On a Zen 4: 2114 such rows at
# 1.05 to 1.13, gradients 0.94 to 1.05, GPT-2 small 0.95 to 1.16.
VARIABLE, BLAS, AVX512 = environment.SGEMM.name, *environment.SGEMM_CHOICES
# By dtype.char; dtype.name takes longer than a small product.
_CBLAS_TYPES = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}
# Least rows or columns of a chunk: with fewer, packing the other operand dominates. Products with
# this much work gain from smaller chunks: on a Zen 5, half the rows of [256, 1373] times [1373,
# 128], or of [128, 800] times [800, 128], take 0.54 of the time of all.
_MIN_CHUNK = 256
_MIN_DEEP_CHUNK, _DEEP_WORK = 64, 1 << 23
# K is split instead of rows and columns if it is this many times larger.
_DEEP_RATIO = 8
# Chunks per thread of a large product, so that a delayed thread hands work over. One chunk per
# thread is better if chunks would have fewer rows or columns: 3 % on a Zen 5 for the layers of
# GPT-2 small with 2048 tokens.
_CHUNKS_PER_THREAD, _LARGE_CHUNK = 2, 1024
# Multiplications below which a second thread does not pay off. It pays off sooner for a matrix
# times a vector, which is bound by memory.
_MIN_PARALLEL_WORK = 1 << 21
_MIN_PARALLEL_GEMV_WORK = 1 << 19


@contextlib.contextmanager
def _core_type_set() -> Iterator[None]:
    """While the library loads: selects OpenBLAS's kernels where its own choice is slower.

    AMD's family 25 (Zen 3 and 4) has 256-bit data paths: AVX2 kernels reach 105-110 GFLOP/s a core,
    AVX-512 kernels 100-105 (float32, 2048x768x3072 and similar).
    """
    name = environment.OPENBLAS_CORETYPE.name
    if environment.OPENBLAS_CORETYPE.is_set or not _is_zen():
        yield
        return
    os.environ[name] = "Zen"
    try:
        yield
    finally:
        del os.environ[name]


def _cpuinfo() -> dict[str, str]:
    """/proc/cpuinfo of the first core; empty on other systems than Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:  # no Linux
        return {}
    facts = (line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in facts}


def _is_zen() -> bool:
    facts = _cpuinfo()
    return facts.get("vendor_id") == "AuthenticAMD" and facts.get("cpu family") == "25"


def forced() -> Optional[str]:
    """The backend that $CEREBRAS_TF_SGEMM names; None for the faster one.

    Raises:
        ConfigError: the variable's value is unknown, or this processor has no AVX-512.
    """
    wanted, has = environment.SGEMM.get(), "avx512f" in features()
    if wanted == AVX512 and not has:
        raise ConfigError(
            f"environment variable {VARIABLE}: must be {BLAS}, or {AVX512} where the processor "
            f"has it. Received: {wanted!r}. Unset it to use the faster one."
        )
    return wanted


@functools.cache
def _uses_avx512() -> bool:
    """Whether our AVX-512 kernels compute large float32 products here."""
    wanted = forced()
    if wanted is not None:
        return wanted == AVX512
    is_measured = _cpuinfo().get("vendor_id") == "GenuineIntel" or _is_zen()
    return "avx512f" in features() and is_measured


def _is_avx512_product(rows: int, columns: int) -> bool:
    return _uses_avx512() and rows >= MR and columns >= NR


def _load() -> Optional[ctypes.CDLL]:
    """OpenBLAS, set to one thread; None if it is not installed or does not load."""
    try:
        with _core_type_set():
            package: Any = importlib.import_module("scipy_openblas32")
            path = next(Path(package.get_lib_dir()).glob("libscipy_openblas.*"))
            library = ctypes.CDLL(str(path))
        library.scipy_openblas_set_num_threads(1)
        for letter, number in _CBLAS_TYPES.values():
            size, order, pointer = ctypes.c_int, ctypes.c_int, ctypes.c_void_p
            gemm_c = getattr(library, f"scipy_cblas_{letter}gemm")
            gemm_c.argtypes = [order, order, order, size, size, size, number]
            gemm_c.argtypes += [pointer, size, pointer, size, number, pointer, size]
            gemv_c = getattr(library, f"scipy_cblas_{letter}gemv")
            gemv_c.argtypes = [order, order, size, size, number]
            gemv_c.argtypes += [pointer, size, pointer, size, number, pointer, size]
            gemm_c.restype = gemv_c.restype = None
    except (ImportError, StopIteration, OSError, AttributeError):
        return None
    return library


_LIBRARY = _load()


def _address(name: str) -> int:
    """Address of a function of the library; 0 without the library."""
    if _LIBRARY is None:
        return 0
    return ctypes.cast(getattr(_LIBRARY, name), ctypes.c_void_p).value or 0


# Address of cblas_sgemm for compiled code; 0 without the library.
SGEMM = _address("scipy_cblas_sgemm")


def library_name() -> str:
    """Name, version and kernels of the BLAS in use, and whether AVX-512 kernels of our own are."""
    return f"{_blas_name()}; larger products by AVX-512" if _uses_avx512() else _blas_name()


def _blas_name() -> str:
    if _LIBRARY is None:
        show_config: Any = np.show_config  # its annotations lack `mode`
        blas = show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas['version']} of NumPy"
    config = _LIBRARY.scipy_openblas_get_config
    config.restype = ctypes.c_char_p
    return str(config().decode())


def gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False) -> None:
    """out = a b, or out += a b, on all threads; operands may be transposed views.

    Args:
        a: [..., M, K] float32 or float64, rows or columns contiguous.
        b: [..., K, N], of the same dtype and leading dimensions.
        out: [..., M, N], rows contiguous.
        add: whether to add into `out`.
    """
    if _LIBRARY is None or out.dtype.char not in _CBLAS_TYPES:
        _numpy_gemm(a, b, out, add)
        return
    if out.ndim > 2:
        _batched_gemm(a, b, out, add)
        return
    if is_skinny(a, b, out):
        skinny_gemm(a, b, out, add)
        return
    rows, columns = out.shape
    work = rows * columns * a.shape[1]
    longest = max(rows, columns)
    chunks = _chunk_count(longest, work)
    if work < (_MIN_PARALLEL_GEMV_WORK if min(rows, columns) == 1 else _MIN_PARALLEL_WORK):
        serial_gemm(a, b, out, add)
        return
    if out.dtype.char == "f" and _is_avx512_product(rows, columns):
        _avx512_gemm(a, b, out, add, chunks)
        return
    if a.shape[1] >= _DEEP_RATIO * longest:
        _split_k(a, b, out, add)
    elif chunks < 2:
        serial_gemm(a, b, out, add)
    elif not (SGEMM and out.dtype.char == "f" and parallel_sgemm(SGEMM, a, b, out, add, chunks)):
        _split_outer(a, b, out, add, chunks)


def _split_outer(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, chunks: int) -> None:
    """Chunks of the rows, or of the columns if there are more."""
    by_rows = out.shape[0] >= out.shape[1]
    longest = max(out.shape)

    def run(i: int) -> None:
        part = slice(longest * i // chunks, longest * (i + 1) // chunks)
        if by_rows:
            serial_gemm(a[part], b, out[part], add)
        else:
            serial_gemm(a, b[:, part], out[:, part], add)

    parallel_tasks(run, chunks, out.size * a.shape[1])


def _chunk_count(longest: int, work: int) -> int:
    """Chunks of a product with so many rows or columns; 1: one thread computes it."""
    several, each = num_threads(), longest // num_threads()
    if several > 1 and each >= _MIN_CHUNK:
        return several * min(_CHUNKS_PER_THREAD, max(1, each // _LARGE_CHUNK))
    return max(1, min(several, longest // _MIN_DEEP_CHUNK)) if work >= _DEEP_WORK else 1


def scratch_bytes(rows: int, inner: int, columns: int, item_bytes: int) -> int:
    """Bytes of scratch memory that `gemm` takes for [rows, inner] times [inner, columns]."""
    if rows * columns * inner < _MIN_PARALLEL_WORK or min(rows, columns) == 1:
        return 0
    if _LIBRARY is None:
        return 0
    deep = inner >= _DEEP_RATIO * max(rows, columns)
    own = item_bytes == 4 and _is_avx512_product(rows, columns)
    sums = round_up((num_threads() - 1) * rows * columns * item_bytes) if deep else 0
    return sums + (num_threads() * WORKSPACE_STRIDE if own else 0)


def _avx512_gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, chunks: int) -> None:
    """`gemm` by our AVX-512 kernels."""
    if not _is_row_major(out):
        if not _is_row_major(out.T):  # neither rows nor columns are contiguous
            copied = np.array(out, order="C") if add else np.empty(out.shape, out.dtype)
            _avx512_gemm(a, b, copied, add, chunks)
            out[...] = copied
            return
        a, b, out = b.T, a.T, out.T
    a, b = _blas_layout(a)[0], _blas_layout(b)[0]
    (rows, columns), inner = out.shape, a.shape[1]
    operands = (
        (rows, columns, inner, int(add)),
        (a.ctypes.data, *a.strides),
        (b.ctypes.data, *b.strides),
        (out.ctypes.data, out.strides[0]),
    )
    count = num_threads()
    with borrow((count * WORKSPACE_STRIDE,), np.uint8) as workspaces:
        workspace = workspaces.ctypes.data
        if inner < _DEEP_RATIO * max(rows, columns):
            by_rows = rows >= columns
            length = rows if by_rows else columns
            parallel_chunks(
                gemm_range, length, chunks, by_rows, *operands, workspace, workspaces=count
            )
            return
        with borrow((count - 1, rows, columns), out.dtype) as sums:
            at = sums.ctypes.data
            parallel_chunks(
                gemm_k_range, count, count, count, *operands, at, workspace, workspaces=count
            )
            for other in sums:
                out += other


def _split_k(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """A range of K per thread: each thread packs only its part of both operands."""
    chunks, inner = num_threads(), a.shape[1]
    with borrow((chunks - 1, *out.shape), out.dtype) as others:
        sums = [out, *others]

        def run(i: int) -> None:
            part = slice(inner * i // chunks, inner * (i + 1) // chunks)
            serial_gemm(a[:, part], b[part], sums[i], add and i == 0)

        parallel_tasks(run, chunks, out.size * inner)
        for other in others:
            out += other


def _batched_gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """One product per index of the leading dimensions, several indices per thread."""
    lead = out.shape[:-2]
    a = np.broadcast_to(a, lead + a.shape[-2:])
    b = np.broadcast_to(b, lead + b.shape[-2:])
    indices = list(np.ndindex(*lead))
    if len(indices) < num_threads():
        for index in indices:
            gemm(a[index], b[index], out[index], add)
        return
    if is_batched_gemv(a, b, out):
        batched_gemv(a, b, out, add)
        return
    chunks = min(len(indices), 2 * num_threads())

    def run(i: int) -> None:
        for index in indices[len(indices) * i // chunks : len(indices) * (i + 1) // chunks]:
            serial_gemm(a[index], b[index], out[index], add)

    parallel_tasks(run, chunks, out.size * a.shape[-1])


def serial_gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False) -> None:
    """[M, K] times [K, N] on this thread; arguments as of `gemm`."""
    if SGEMM and out.dtype.char == "f" and sgemm(SGEMM, a, b, out, add):
        return
    (rows, columns), inner = out.shape, a.shape[1]
    if not rows or not columns:
        return
    if not inner or _LIBRARY is None:
        _numpy_gemm(a, b, out, add)
        return
    if rows == 1:
        _gemv(b.T, a[0], out[0], add)
        return
    if columns == 1:
        _gemv(a, b[:, 0], out[:, 0], add)
        return
    (a, a_order, a_step), (b, b_order, b_step) = _blas_layout(a), _blas_layout(b)
    target = out
    if not _is_row_major(out):
        target = np.array(out, order="C") if add else np.empty(out.shape, out.dtype)
    letter = _CBLAS_TYPES[out.dtype.char][0]
    getattr(_LIBRARY, f"scipy_cblas_{letter}gemm")(
        ROW_MAJOR,
        a_order,
        b_order,
        rows,
        columns,
        inner,
        1.0,
        a.ctypes.data,
        a_step,
        b.ctypes.data,
        b_step,
        1.0 if add else 0.0,
        target.ctypes.data,
        max(target.strides[0] // target.itemsize, columns),
    )
    if target is not out:
        out[...] = target


def _gemv(matrix: np.ndarray, vector: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out [M] = matrix [M, K] vector [K], or added. Unlike gemm it packs no copy of the matrix."""
    matrix, order, step = _blas_layout(matrix)
    if vector.strides[0] <= 0:
        vector = vector.copy()
    rows, columns = matrix.shape if order == PLAIN else matrix.shape[::-1]
    letter = _CBLAS_TYPES[out.dtype.char][0]
    getattr(_LIBRARY, f"scipy_cblas_{letter}gemv")(
        ROW_MAJOR,
        order,
        rows,
        columns,
        1.0,
        matrix.ctypes.data,
        step,
        vector.ctypes.data,
        vector.strides[0] // vector.itemsize,
        1.0 if add else 0.0,
        out.ctypes.data,
        max(out.strides[0] // out.itemsize, 1),
    )


def _is_row_major(array: np.ndarray) -> bool:
    (rows, columns), (row_bytes, column_bytes) = array.shape, array.strides
    contiguous = column_bytes == array.itemsize or columns == 1
    return contiguous and (rows == 1 or row_bytes >= columns * array.itemsize)


def _blas_layout(array: np.ndarray) -> tuple[np.ndarray, int, int]:
    """(array, BLAS's order, elements between its rows), copied if neither order applies."""
    if _is_row_major(array):
        step = array.strides[0] // array.itemsize
        return array, PLAIN, max(step if array.shape[0] > 1 else 0, array.shape[1])
    if _is_row_major(array.T):
        step = array.strides[1] // array.itemsize
        return array, TRANSPOSED, max(step if array.shape[1] > 1 else 0, array.shape[0])
    array = np.ascontiguousarray(array)
    return array, PLAIN, array.shape[1]


def _numpy_gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    if add:
        out += np.matmul(a, b)
    else:
        np.matmul(a, b, out=out)
