"""Says before the first step whether a model fits into this machine's memory."""

from __future__ import annotations

import os

from cerebras_tf.errors import CapacityError
from cerebras_tf.ir.program import Program

# Of free memory, the part that activations leave to TensorFlow and the input pipeline.
_MARGIN = 0.1
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available_bytes() -> int:
    """Bytes of memory a process may still take: what the kernel says, within the cgroup's limit."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
    except OSError:  # no Linux: physical memory is the best that is known
        pass
    for path in _CGROUP_LIMITS:
        try:
            with open(path, encoding="ascii") as text:
                limit = text.read().strip()
        except OSError:
            continue
        if limit.isdigit():
            available = min(available, int(limit))
    return available


def activation_bytes(program: Program) -> int:
    """Bytes that a step takes beside variables: activations and scratch memory."""
    return program.arena_bytes + program.scratch_bytes


def room_for_activations(state_bytes: int, held_bytes: int = 0) -> int:
    """Bytes that activations and scratch memory may take: what is free, less a tenth.

    Args:
        state_bytes: as for `check_memory`.
        held_bytes: as for `check_memory`.
    """
    return int((1 - _MARGIN) * (available_bytes() + held_bytes - state_bytes))


def check_memory(program: Program, state_bytes: int, held_bytes: int = 0) -> None:
    """Raises CapacityError where variables, activations and scratch memory do not fit.

    Args:
        program: gives the activation and the scratch memory.
        state_bytes: bytes of weights and optimizer state in memory, see Store.total_resident_bytes.
        held_bytes: bytes of all these that are allocated already.
    """
    activations = activation_bytes(program)
    needed = state_bytes + activations
    free = available_bytes() + held_bytes
    if needed <= free:
        return
    largest = max(program.layers, key=lambda layer: layer.weight_bytes, default=None)
    hint = ""
    if largest is not None:
        hint = f" Largest layer: '{largest.name}', {largest.weight_bytes / 1e9:.2f} GB of weights."
    raise CapacityError(
        f"this model needs {needed / 1e9:.1f} GB of memory: {state_bytes / 1e9:.1f} GB of weights "
        f"and optimizer state, {activations / 1e9:.1f} GB of activations and gradients. "
        f"Received: a machine with {free / 1e9:.1f} GB free, {(needed - free) / 1e9:.1f} GB too "
        f"little.{hint} Lower train_input.batch_size "
        "or max_sequence_length, choose a smaller model, or use a machine with more memory."
    )
