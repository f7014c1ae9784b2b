"""Which of the processor's instructions multiply bfloat16 numbers here, and why these.

AMX where processor and kernel permit it, beside AVX512-BF16, which rounds its operands; else
AVX512-BF16 where a trial finds it faster than float32 products; else none: then numbers are rounded
and multiplied in float32, no faster. The trial runs at first use, for a tenth of a second, and is
remembered beside the compiled kernels.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Optional

from cerebras_tf.environment import ISA, ISA_CHOICES
from cerebras_tf.errors import ConfigError

VARIABLE = ISA.name
KINDS = NONE, VECTOR, TILES = ISA_CHOICES
_NAMES = {VECTOR: "AVX512-BF16", TILES: "AMX"}
# Linux, arch/x86/include/uapi/asm/prctl.h and unistd_64.h: the state of tiles must be asked for.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
# A trial in which the instructions gain less than this leaves float32 products in place.
_LEAST_GAIN = 1.05


class Choice(NamedTuple):
    """What multiplies bfloat16 numbers.

    Attributes:
        kind: one of KINDS.
        reason: a sentence for people.
    """

    kind: str
    reason: str


@functools.cache
def features() -> frozenset[str]:
    """Features of this processor by LLVM's names; none without Numba."""
    try:
        binding = importlib.import_module("llvmlite.binding")
    except ImportError:
        return frozenset()
    return frozenset(name for name, has in binding.get_host_cpu_features().items() if has)


@functools.cache
def _tile_refusal() -> str:
    """Why tiles cannot be used; "" where they can, and then this process may use them."""
    if not {"amx-bf16", "amx-tile"} <= features():
        return "the processor has no AMX"
    if _vector_refusal():  # which rounds operands
        return "AMX needs AVX512-BF16 beside it"
    if not sys.platform.startswith("linux"):
        return "the system is not Linux"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA):
        return f"the system does not permit AMX: {os.strerror(ctypes.get_errno())}"
    return ""


def _vector_refusal() -> str:
    """Why AVX512-BF16 cannot be used; "" where it can."""
    return "" if "avx512bf16" in features() else "the processor has no AVX512-BF16"


def refusal(kind: str) -> str:
    """Why a kind of instruction cannot be used here; "" where it can."""
    if kind == NONE:
        return ""
    return _vector_refusal() if kind == VECTOR else _tile_refusal()


def choose(trial: Callable[[], float], folder: Optional[Path]) -> Choice:
    """What multiplies bfloat16 numbers here.

    Args:
        trial: measures how many times as fast as float32 products AVX512-BF16 is.
        folder: where the trial's result is remembered; None: nowhere.

    Raises:
        ConfigError: CEREBRAS_TF_ISA names something else, or what is not here.
    """
    wanted = ISA.get()
    if wanted is not None:
        if refusal(wanted):
            raise ConfigError(
                f"environment variable {VARIABLE}: must name what this machine has. Received: "
                f"{wanted!r}, but {refusal(wanted)}. Unset it to use the fastest."
            )
        return Choice(wanted, f"{VARIABLE} says so")
    if not _tile_refusal():
        return Choice(TILES, "the processor has AMX")
    if _vector_refusal():
        return Choice(NONE, f"{_tile_refusal()}, and {_vector_refusal()}")
    gain = _remembered(trial, folder)
    if gain < _LEAST_GAIN:
        return Choice(NONE, f"a trial of AVX512-BF16 took {1 / gain:.2f} of the time of float32")
    return Choice(VECTOR, f"a trial took {1 / gain:.2f} of the time of float32")


def _remembered(trial: Callable[[], float], folder: Optional[Path]) -> float:
    """The trial's result, from the folder where it was made on a processor like this one."""
    if folder is None:
        return trial()
    digest = hashlib.sha256(",".join(sorted(features())).encode()).hexdigest()[:12]
    path = folder / f"trial-{digest}.json"
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["gain"])
    except (OSError, ValueError, KeyError, TypeError):
        gain = trial()
    part = path.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(json.dumps({"gain": gain}), encoding="utf-8")
        part.replace(path)
    except OSError:  # remembered for this process alone
        pass
    return gain


def described(choice: Choice, what: str = "large products in bfloat16") -> str:
    """A sentence on what the choice means for a run."""
    if choice.kind == NONE:
        return (
            f"{what}: rounded and computed in float32, so this run is not faster: {choice.reason}"
        )
    return f"{what}: by {_NAMES[choice.kind]} ({choice.reason})"
