"""Matrix products through an OpenBLAS of our own, spread over the kernels' threads.

The library comes as a wheel (scipy-openblas32), newer than the one inside NumPy; on a Zen 4 it is 5
to 10 % faster, and it adds into a result (beta = 1), which NumPy cannot ask for. It runs
single-threaded: rows or columns of a product are split over threads that sleep when idle. Without
the wheel NumPy's matmul serves. On processors where they are faster the larger float32 products
run on kernels of our own (compiled_vectors.py).
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
    COLUMNS,
    ROWS,
    STEP_BYTES,
    multiply_inner,
    multiply_range,
)
from cerebras_tf.kernels.compiled_blas import PLAIN, ROW_MAJOR, TRANSPOSED, sgemm, spread_sgemm
from cerebras_tf.kernels.compiled_skinny_gemm import (
    are_vectors,
    is_thin,
    thin_product,
    vector_products,
)
from cerebras_tf.kernels.compiled_threads import for_chunks, spread, threads
from cerebras_tf.kernels.instruction_set import features
from cerebras_tf.kernels.scratch import borrowed, rounded

# What multiplies larger float32 matrices. Without the variable, kernels of our own where they were
# measured, on Intel's processors with AVX-512 and on the Zen 4: on a Xeon with AMX and two threads,
# 2424 rows from memory times 256 x 256 to 256 x 6000 numbers run at 1.10 to 1.14 times OpenBLAS's
# speed, and gradients of such layers at 1.00 to 1.14; layers of GPT-2 small at 0.95 to 1.04. On a
# Zen 4, 2114 such rows at 1.05 to 1.13, gradients at 0.94 to 1.05, GPT-2 small at 0.95 to 1.16.
VARIABLE, BLAS, VECTORS = environment.SGEMM.name, *environment.SGEMM_CHOICES
# By NumPy's character of a dtype, whose name takes longer to find than a small product.
_NUMBERS = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}
# Rows or columns of a product's part: fewer, and packing the other operand shows; where there is
# this much work besides, less than a second thread gives: on a Zen 5, half the rows of [256, 1373]
# times [1373, 128], or of [128, 800] times [800, 128], take 0.54 of the time of all.
_LEAST_PART = 256
_LEAST_DEEP_PART, _DEEP_WORK = 64, 1 << 23
# Inner dimensions this many times the longer outer one are split instead.
_DEEP = 8
# Parts a thread of a large product, so that a thread that is held up hands work over; parts of
# fewer rows or columns than this pay for it: on a Zen 5, one part a thread is 3 % faster at the
# layers of GPT-2 small with 2048 tokens.
_PARTS, _LARGE_PART = 2, 1024
# Multiplications below which a second thread costs more than it gives; of a matrix and a vector,
# where the matrix comes from memory for one multiplication each, it gives sooner.
_LEAST_WORK = 1 << 21
_LEAST_VECTOR_WORK = 1 << 19


@contextlib.contextmanager
def _kernels_chosen() -> Iterator[None]:
    """While the library loads: names the kernels it should take, where its own choice is slower.

    AMD's family 25 (Zen 3 and 4) has 256-bit data paths: AVX2 kernels reach 105-110 GFLOP/s a core
    there, AVX-512 kernels 100-105 (2048x768x3072 and like products, float32).
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


def _processor() -> dict[str, str]:
    """What Linux says of the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:  # no Linux
        return {}
    facts = (line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in facts}


def _is_zen() -> bool:
    facts = _processor()
    return facts.get("vendor_id") == "AuthenticAMD" and facts.get("cpu family") == "25"


def forced() -> Optional[str]:
    """What the user asks for to multiply large float32 matrices; None for the faster.

    Raises:
        ConfigError: CEREBRAS_TF_SGEMM names something else, or what is not here.
    """
    wanted, has = environment.SGEMM.get(), "avx512f" in features()
    if wanted == VECTORS and not has:
        raise ConfigError(
            f"environment variable {VARIABLE}: must be {BLAS}, or {VECTORS} where the processor "
            f"has it. Received: {wanted!r}. Unset it to use what was measured to be faster."
        )
    return wanted


@functools.cache
def _has_vectors() -> bool:
    """Whether kernels of our own multiply float32 matrices here; see forced."""
    wanted = forced()
    if wanted is not None:
        return wanted == VECTORS
    is_measured = _processor().get("vendor_id") == "GenuineIntel" or _is_zen()
    return "avx512f" in features() and is_measured


def _by_vectors(rows: int, columns: int) -> bool:
    """Whether they multiply such a product; the work was judged."""
    return _has_vectors() and rows >= ROWS and columns >= COLUMNS


def _load() -> Optional[ctypes.CDLL]:
    """The library, set to one thread; None where it is not installed or does not load."""
    try:
        with _kernels_chosen():
            package: Any = importlib.import_module("scipy_openblas32")
            path = next(Path(package.get_lib_dir()).glob("libscipy_openblas.*"))
            library = ctypes.CDLL(str(path))
        library.scipy_openblas_set_num_threads(1)
        for letter, number in _NUMBERS.values():
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
    """Where a function of the library lies; 0 without the library."""
    if _LIBRARY is None:
        return 0
    return ctypes.cast(getattr(_LIBRARY, name), ctypes.c_void_p).value or 0


# For compiled code; 0 without the library.
SGEMM = _address("scipy_cblas_sgemm")


def library_name() -> str:
    """Name, version and kernels of the BLAS that products run on, and whether some do not."""
    return f"{_blas_name()}; larger products by AVX-512" if _has_vectors() else _blas_name()


def _blas_name() -> str:
    if _LIBRARY is None:
        show_config: Any = np.show_config  # its annotations lack `mode`
        blas = show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas['version']} of NumPy"
    config = _LIBRARY.scipy_openblas_get_config
    config.restype = ctypes.c_char_p
    return str(config().decode())


def product(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False) -> None:
    """out = a b, or out += a b; operands may be transposed views.

    Args:
        a: [..., M, K] float32 or float64, rows or columns contiguous.
        b: [..., K, N], of the same dtype and leading dimensions.
        out: [..., M, N], rows contiguous.
        add: whether to add into `out`.
    """
    if _LIBRARY is None or out.dtype.char not in _NUMBERS:
        _numpy_product(a, b, out, add)
        return
    if out.ndim > 2:
        _batch(a, b, out, add)
        return
    if is_thin(a, b, out):
        thin_product(a, b, out, add)
        return
    rows, columns = out.shape
    work = rows * columns * a.shape[1]
    longest = max(rows, columns)
    parts = _parts(longest, work)
    if work < (_LEAST_VECTOR_WORK if min(rows, columns) == 1 else _LEAST_WORK):
        gemm(a, b, out, add)
        return
    if out.dtype.char == "f" and _by_vectors(rows, columns):
        _multiply_vectors(a, b, out, add, parts)
        return
    if a.shape[1] >= _DEEP * longest:
        _split_inner(a, b, out, add)
    elif parts < 2:
        gemm(a, b, out, add)
    elif not (SGEMM and out.dtype.char == "f" and spread_sgemm(SGEMM, a, b, out, add, parts)):
        _split_outer(a, b, out, add, parts)


def _split_outer(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, parts: int) -> None:
    """Parts of the rows, or of the columns where there are more."""
    by_rows = out.shape[0] >= out.shape[1]
    longest = max(out.shape)

    def run(i: int) -> None:
        part = slice(longest * i // parts, longest * (i + 1) // parts)
        if by_rows:
            gemm(a[part], b, out[part], add)
        else:
            gemm(a, b[:, part], out[:, part], add)

    for_chunks(run, parts, out.size * a.shape[1])


def _parts(longest: int, work: int) -> int:
    """Parts of a product with so many rows or columns; 1: it is left to one thread."""
    several, each = threads(), longest // threads()
    if several > 1 and each >= _LEAST_PART:
        return several * min(_PARTS, max(1, each // _LARGE_PART))
    return max(1, min(several, longest // _LEAST_DEEP_PART)) if work >= _DEEP_WORK else 1


def scratch_bytes(rows: int, inner: int, columns: int, item_bytes: int) -> int:
    """Bytes of scratch memory that `product` takes for [rows, inner] times [inner, columns]."""
    if rows * columns * inner < _LEAST_WORK or min(rows, columns) == 1:
        return 0
    if _LIBRARY is None:
        return 0
    deep = inner >= _DEEP * max(rows, columns)
    own = item_bytes == 4 and _by_vectors(rows, columns)
    sums = rounded((threads() - 1) * rows * columns * item_bytes) if deep else 0
    return sums + (threads() * STEP_BYTES if own else 0)


def _multiply_vectors(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, parts: int) -> None:
    """`product` by the kernels of our own."""
    if not _by_rows(out):
        if not _by_rows(out.T):  # neither rows nor columns are contiguous
            made = np.array(out, order="C") if add else np.empty(out.shape, out.dtype)
            _multiply_vectors(a, b, made, add, parts)
            out[...] = made
            return
        a, b, out = b.T, a.T, out.T
    a, b = _layout(a)[0], _layout(b)[0]
    (rows, columns), inner = out.shape, a.shape[1]
    operands = (
        (rows, columns, inner, int(add)),
        (a.ctypes.data, *a.strides),
        (b.ctypes.data, *b.strides),
        (out.ctypes.data, out.strides[0]),
    )
    count = threads()
    with borrowed((count * STEP_BYTES,), np.uint8) as rooms:
        room = rooms.ctypes.data
        if inner < _DEEP * max(rows, columns):
            by_rows = rows >= columns
            length = rows if by_rows else columns
            spread(multiply_range, length, parts, by_rows, *operands, room, rooms=count)
            return
        with borrowed((count - 1, rows, columns), out.dtype) as sums:
            at = sums.ctypes.data
            spread(multiply_inner, count, count, count, *operands, at, room, rooms=count)
            for other in sums:
                out += other


def _split_inner(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """A part of the inner dimension a thread: each packs its part of both operands alone."""
    parts, inner = threads(), a.shape[1]
    with borrowed((parts - 1, *out.shape), out.dtype) as others:
        sums = [out, *others]

        def run(i: int) -> None:
            part = slice(inner * i // parts, inner * (i + 1) // parts)
            gemm(a[:, part], b[part], sums[i], add and i == 0)

        for_chunks(run, parts, out.size * inner)
        for other in others:
            out += other


def _batch(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """One product for every index of the leading dimensions, several indices a thread."""
    lead = out.shape[:-2]
    a = np.broadcast_to(a, lead + a.shape[-2:])
    b = np.broadcast_to(b, lead + b.shape[-2:])
    indices = list(np.ndindex(*lead))
    if len(indices) < threads():
        for index in indices:
            product(a[index], b[index], out[index], add)
        return
    if are_vectors(a, b, out):
        vector_products(a, b, out, add)
        return
    chunks = min(len(indices), 2 * threads())

    def run(i: int) -> None:
        for index in indices[len(indices) * i // chunks : len(indices) * (i + 1) // chunks]:
            gemm(a[index], b[index], out[index], add)

    for_chunks(run, chunks, out.size * a.shape[-1])


def gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False) -> None:
    """One product [M, K] times [K, N] on this thread; as `product` otherwise."""
    if SGEMM and out.dtype.char == "f" and sgemm(SGEMM, a, b, out, add):
        return
    (rows, columns), inner = out.shape, a.shape[1]
    if not rows or not columns:
        return
    if not inner or _LIBRARY is None:
        _numpy_product(a, b, out, add)
        return
    if rows == 1:
        _gemv(b.T, a[0], out[0], add)
        return
    if columns == 1:
        _gemv(a, b[:, 0], out[:, 0], add)
        return
    (a, a_order, a_step), (b, b_order, b_step) = _layout(a), _layout(b)
    target = out
    if not _by_rows(out):
        target = np.array(out, order="C") if add else np.empty(out.shape, out.dtype)
    letter = _NUMBERS[out.dtype.char][0]
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
    """out [M] = matrix [M, K] vector [K], or added: unlike gemm it packs no copy of the matrix."""
    matrix, order, step = _layout(matrix)
    if vector.strides[0] <= 0:
        vector = vector.copy()
    rows, columns = matrix.shape if order == PLAIN else matrix.shape[::-1]
    letter = _NUMBERS[out.dtype.char][0]
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


def _by_rows(array: np.ndarray) -> bool:
    (rows, columns), (row_bytes, column_bytes) = array.shape, array.strides
    contiguous = column_bytes == array.itemsize or columns == 1
    return contiguous and (rows == 1 or row_bytes >= columns * array.itemsize)


def _layout(array: np.ndarray) -> tuple[np.ndarray, int, int]:
    """(array, whether BLAS reads it transposed, elements between its rows), copied if need be."""
    if _by_rows(array):
        step = array.strides[0] // array.itemsize
        return array, PLAIN, max(step if array.shape[0] > 1 else 0, array.shape[1])
    if _by_rows(array.T):
        step = array.strides[1] // array.itemsize
        return array, TRANSPOSED, max(step if array.shape[1] > 1 else 0, array.shape[0])
    array = np.ascontiguousarray(array)
    return array, PLAIN, array.shape[1]


def _numpy_product(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    if add:
        out += np.matmul(a, b)
    else:
        np.matmul(a, b, out=out)
