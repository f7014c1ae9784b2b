"""Chooses the instructions that kernels use.

For bfloat16 GEMM: AMX if processor and operating system permit it and AVX512-BF16, which rounds
operands, is there; else AVX512-BF16 if a trial finds it faster than float32 GEMM; else none:
operands are rounded and multiplied in float32. The trial takes a tenth of a second at first use;
its result is stored next to the compiled kernels.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Optional

from cerebras_tf.environment import ISA, ISA_CHOICES
from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels import cache_files

VARIABLE = ISA.name
BASELINE, AVX2, *KINDS = ISA_CHOICES
NONE, AVX512_BF16, AMX = KINDS
_NAMES = {AVX512_BF16: "AVX512-BF16", AMX: "AMX"}
# Features that every x86-64 processor has, and prefixes of features newer than AVX2.
_EVERYWHERE = frozenset(["64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"])
_NEWER = ("avx512", "avx10", "avxneconvert", "avxvnni", "avxifma", "amx")
# Linux, arch/x86/include/uapi/asm/prctl.h and unistd_64.h: permission for tile state must be
# requested.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
# Speed-up in the trial below which float32 GEMM stays in use.
_MIN_SPEEDUP = 1.05


class Choice(NamedTuple):
    """The instructions for bfloat16 GEMM.

    Attributes:
        kind: one of KINDS.
    """

    kind: str
    reason: str


@functools.cache
def features() -> frozenset[str]:
    """This processor's features that kernels may use, by LLVM's names."""
    has = frozenset(name for name, is_there in _host_features().items() if is_there)
    level = ISA.get()
    if level == BASELINE:
        return has & _EVERYWHERE if "sse2" in has else has
    if level == AVX2:
        return frozenset(name for name in has if not name.startswith(_NEWER))
    return has


def features_digest() -> str:
    """Digest of `features`, for names of files."""
    return hashlib.sha256(",".join(sorted(features())).encode()).hexdigest()[:12]


def llvm_features() -> str:
    """Features of the target of compiled kernels, as LLVM's options."""
    on = features()
    return ",".join(f"{'+' if name in on else '-'}{name}" for name in sorted(_host_features()))


def _host_features() -> dict[str, bool]:
    try:
        found = dict(importlib.import_module("llvmlite.binding").get_host_cpu_features())
    except (ImportError, RuntimeError):  # RuntimeError: LLVM does not know the processor
        return {}
    if "avx512fp16" in found:
        # With half precision arithmetic LLVM would fuse multiplications and additions, which rounds
        # once where `precision: emulate` rounds twice.
        found["avx512fp16"] = False
    return found


@functools.cache
def _why_no_amx() -> str:
    """Why AMX cannot be used; "" if it can, and then this process is permitted to use it."""
    if not {"amx-bf16", "amx-tile"} <= features():
        return "the processor has no AMX"
    if _why_no_avx512_bf16():  # which rounds operands
        return "AMX also needs AVX512-BF16"
    if not sys.platform.startswith("linux"):
        return "the system is not Linux"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA):
        return f"the system does not permit AMX: {os.strerror(ctypes.get_errno())}"
    return ""


def _why_no_avx512_bf16() -> str:
    """Why AVX512-BF16 cannot be used; "" if it can."""
    return "" if "avx512bf16" in features() else "the processor has no AVX512-BF16"


def why_unavailable(kind: str) -> str:
    """Why a kind of instruction cannot be used here; "" if it can."""
    if kind == NONE:
        return ""
    return _why_no_avx512_bf16() if kind == AVX512_BF16 else _why_no_amx()


def choose(trial: Callable[[], float], folder: Optional[Path]) -> Choice:
    """Chooses the instructions for bfloat16 GEMM.

    Args:
        trial: measures the speed of AVX512-BF16 relative to float32 GEMM.
        folder: where the trial's result is stored; None: nowhere.

    Raises:
        ConfigError: $CEREBRAS_TF_ISA has an unknown value, or one that this processor lacks.
    """
    wanted = ISA.get()
    if wanted in (BASELINE, AVX2):
        return Choice(NONE, f"set by {VARIABLE}")
    if wanted is not None:
        if why_unavailable(wanted):
            raise ConfigError(
                f"environment variable {VARIABLE}: must name what this processor has. Received: "
                f"{wanted!r}, but {why_unavailable(wanted)}. Unset it to use the fastest."
            )

        return Choice(wanted, f"set by {VARIABLE}")
    if not _why_no_amx():
        return Choice(AMX, "the processor has AMX")
    if _why_no_avx512_bf16():
        return Choice(NONE, f"{_why_no_amx()}, and {_why_no_avx512_bf16()}")
    gain = _cached_trial(trial, folder)
    if gain < _MIN_SPEEDUP:
        return Choice(NONE, f"a trial of AVX512-BF16 took {1 / gain:.2f} of the time of float32")
    return Choice(AVX512_BF16, f"a trial took {1 / gain:.2f} of the time of float32")


def _cached_trial(trial: Callable[[], float], folder: Optional[Path]) -> float:
    """The trial's result, from the folder if a processor with these features ran it."""
    if folder is None:
        return trial()
    path = folder / f"trial-{features_digest()}"
    stored = cache_files.read(path)
    if stored is not None:
        return float(bytes(stored))
    gain = trial()
    cache_files.write(path, repr(float(gain)).encode())
    return gain


def summarize(choice: Choice, what: str = "large products in bfloat16") -> str:
    """A sentence on what the choice means for a run."""
    if choice.kind == NONE:
        return (
            f"{what}: rounded and computed in float32, so this run is not faster: {choice.reason}"
        )
    return f"{what}: by {_NAMES[choice.kind]} ({choice.reason})"
