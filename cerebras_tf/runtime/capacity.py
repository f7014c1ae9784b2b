"""Says before the first step whether a model fits into this machine's memory."""

from __future__ import annotations

import ctypes
import os
import socket
from collections import defaultdict
from typing import Optional

from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.ir.program import Program
from cerebras_tf.runtime.control_group import allowed_bytes
from cerebras_tf.swarmx.swarm import Swarm

# Of free memory, the part that activations leave to TensorFlow and the input pipeline.
_MARGIN = 0.1


def available_bytes() -> int:
    """Bytes of memory a process may still take: what the kernel says, within its control group."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
    except OSError:  # no Linux: physical memory is the best that is known
        pass
    allowed = allowed_bytes()
    return available if allowed is None else min(available, allowed)


def agreed_share(swarm: Swarm) -> Optional[int]:
    """Bytes that each wafer of a job may take; None for one wafer, which takes what is free.

    The wafers on one machine share what is free there now. All get the share of those who have
    least, so that all compile the same program; they call it together.
    """
    if swarm.size == 1:
        return None
    free: dict[str, list[int]] = defaultdict(list)
    for host, there in swarm.objects((socket.gethostname(), available_bytes())):
        free[host].append(there)
    return min(min(found) // len(found) for found in free.values())


_M_ARENA_MAX = -8  # malloc.h of glibc


def return_freed_memory() -> None:
    """Gives the system back what was freed: glibc keeps it, and counts it as resident.

    Building a graph, its copies for session and files, and compiling leave hundreds of megabytes
    behind. Other C libraries do as they do.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # malloc_trim(3) of glibc
    if trim is not None:
        trim(0)


def share_heap() -> None:
    """Has threads that begin from now on take memory from one heap, with what was freed there.

    By themselves glibc's take turns in eight heaps a core, each with gaps of its own. What a step
    works with is allocated once, and no thread waits for another because of this.
    """
    limit = getattr(ctypes.CDLL(None), "mallopt", None)  # mallopt(3) of glibc
    if limit is not None:
        limit(_M_ARENA_MAX, 1)


def activation_bytes(program: Program) -> int:
    """Bytes that a step takes beside variables: activations and scratch memory."""
    return program.arena_bytes + program.scratch_bytes


def activation_limit(state_bytes: int, held_bytes: int = 0, share: Optional[int] = None) -> int:
    """Bytes that activations and scratch memory may take: what is free, less a tenth.

    Args:
        state_bytes: as for `memory_fault`.
        held_bytes: as for `memory_fault`.
        share: as for `memory_fault`.
    """
    return int((1 - _MARGIN) * (_free_bytes(held_bytes, share) - state_bytes))


def _free_bytes(held_bytes: int, share: Optional[int]) -> int:
    return available_bytes() + held_bytes if share is None else share


def memory_fault(
    program: Program, state_bytes: int, held_bytes: int = 0, share: Optional[int] = None
) -> Optional[BatchCapacityError]:
    """What is wrong where variables, activations and scratch memory do not fit; else None.

    Args:
        program: gives the activation and the scratch memory.
        state_bytes: bytes of weights and optimizer state in memory, see Store.total_resident_bytes.
        held_bytes: bytes of all these that are allocated already.
        share: bytes that one of several wafers may take of its machine, see agreed_share; None
            for one wafer, which may take all.
    """
    activations = activation_bytes(program)
    needed = state_bytes + activations
    free = _free_bytes(held_bytes, share)
    if needed <= free:
        return None
    largest = max(program.layers, key=lambda layer: layer.weight_bytes, default=None)
    hint = ""
    if largest is not None:
        hint = f" Largest layer: '{largest.name}', {largest.weight_bytes / 1e9:.2f} GB of weights."
    return BatchCapacityError(
        f"this model needs {needed / 1e9:.1f} GB of memory: {state_bytes / 1e9:.1f} GB of weights "
        f"and optimizer state, {activations / 1e9:.1f} GB of activations and gradients. "
        f"Received: a machine with {free / 1e9:.1f} GB free{_each(share)}, "
        f"{(needed - free) / 1e9:.1f} GB too little.{hint} Lower batch_size or "
        "max_sequence_length, choose a smaller model, or use a machine with more memory.",
        needed,
        free,
        state_bytes,
    )


def _each(share: Optional[int]) -> str:
    return "" if share is None else " for each of its wafers (num_csx)"
