"""Says in a line what a model is and takes: parameters, layers, memory, tokens, operations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Optional

import tensorflow as tf

from cerebras_tf.errors import StoreError
from cerebras_tf.estimator.call import Call
from cerebras_tf.ir.program import Instruction, Program
from cerebras_tf.kernels.bfloat16 import instructions
from cerebras_tf.kernels.instruction_set import described
from cerebras_tf.memoryx.disk import ON_DISK
from cerebras_tf.memoryx.disk_speed import free_bytes, measured_disk_speeds, require_free
from cerebras_tf.memoryx.process_folder import require_usable
from cerebras_tf.memoryx.store import Store
from cerebras_tf.quantities import in_words, seconds
from cerebras_tf.runtime.capacity import activation_bytes, available_bytes
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.speeds import measured_speeds
from cerebras_tf.runtime.streaming_plan import StreamingPlan, plan_streaming


def describe(call: Call, precision: str = "float32") -> str:
    """The lines on a model that is about to be trained.

    The model is the one of the default graph; memory is left out where it is known only with the
    first batch, or where the host runs the model.
    """
    parts, told = [f"{_parameters():,} parameters"], []
    if call.model is not None:
        program, store = call.model.step.prepared, call.model.store
        if program is not None:
            held = call.model.step.session.held_bytes
            parts += [f"{len(program.layers)} layers", memory(program, store, held)]
            told = streaming(program, store, call.model.step.parts is not None)
        told += products(program, precision)
    if call.tokens is not None:
        in_parts = call.model is not None and call.model.step.parts is not None
        parts.append(f"{call.tokens:,} tokens a {'micro-batch' if in_parts else 'batch'}")
    return "\n".join([", ".join(parts), *told])


def products(program: Optional[Program], precision: str) -> list[str]:
    """What multiplies bfloat16 numbers, where the precision asks for it.

    Args:
        program: None where the first batch will say what it is.
        precision: see CSRunConfig.
    """
    if precision != "bfloat16":
        return []
    if program is None:
        return [described(instructions(), "large products in bfloat16, if there are any")]
    if any(map(_is_rounded, _instructions(program))):
        return [described(instructions())]
    return [
        "large products in bfloat16: the model has none, so all are computed in float32, and this "
        "run is not faster"
    ]


def _is_rounded(instruction: Instruction) -> bool:
    return instruction.attrs.get("compute") == "bfloat16"


def _instructions(program: Program) -> Iterator[Instruction]:
    """The instructions of a program, those of branches too."""
    for instruction in itertools.chain.from_iterable(program.bodies):
        yield instruction
        for value in instruction.attrs.values():
            if isinstance(value, Program):
                yield from _instructions(value)


def describe_program(
    program: Program,
    store: Store,
    precision: str = "float32",
    in_parts: bool = False,
    trains: bool = False,
) -> str:
    """The lines on a model that was compiled and not loaded; see streaming for `in_parts`.

    Training is told where the disk of memoryx_dir is none for it; others write nothing there.
    """
    layers = f"{len(program.layers)} layers"
    first = ", ".join([f"{_parameters():,} parameters", layers, memory(program, store)])
    lack = disk_fault(program, store) if trains else None
    told = [] if lack is None else [f"it does not fit here, and would be refused: {lack}"]
    moved = streaming(program, store, in_parts, trains)
    lines = [first, *moved, *products(program, precision), *told]
    return "\n".join(lines)


def disk_fault(program: Program, store: Store) -> Optional[StoreError]:
    """What is wrong where the disk of memoryx_dir is none to train on; else None.

    For a model that was compiled and not loaded: what a loaded one has written is counted twice.
    """
    found = _plan(program, store)
    if found is None:
        return None
    plan, folder, _ = found
    need = program.wafers * (plan.weight_bytes + plan.state_bytes + plan.staged_bytes)
    try:
        require_usable(folder)
        require_free(folder, need, ON_DISK)
    except StoreError as error:
        return error
    return None


def streaming(
    program: Program, store: Store, in_parts: bool = False, trains: bool = True
) -> list[str]:
    """What a step from files moves, where variables rest there, and what bounds its time.

    Of several wafers, what one of them keeps and moves. Where batches run in parts, the program is
    that of the last, which moves the optimizer's state besides. Where nothing is trained, nothing
    but weights is on the disk, which stay in the checkpoint's own files.
    """
    found = _plan(program, store)
    if found is None:
        return []
    plan, folder, wafer = found
    which = "" if wafer is None else f" of wafer {wafer} of {program.wafers}"
    beside = "" if wafer is None else " and copies of what others keep"
    most = f"at most {_size(plan.memory_bytes)} of it{beside} in memory"
    lines = [
        f"on files{which}: {_size(plan.weight_bytes)} weights, {_size(plan.state_bytes)} optimizer "
        f"state and others, {_size(plan.staged_bytes)} gradients and activations that wait; {most};"
        f" {_size(free_bytes(folder))} of disk free, of which each checkpoint takes up to "
        f"{_size(sum(spec.type.most_bytes for spec in store.specs.values()))}"
        if trains
        else f"on files{which}: {_size(plan.weight_bytes + plan.state_bytes)} weights; {most}"
    ]
    what = "the last part of a step" if in_parts else "a step"
    moved = f"{what} reads {_size(plan.bytes_read)} and writes {_size(plan.bytes_written)}"
    try:
        read, write = measured_disk_speeds(folder)
    except OSError:  # no room to measure with; what matters will say so
        return [*lines, moved]
    moving_s = plan.bytes_read / read + plan.bytes_written / write
    computing_s = plan.flops / measured_speeds().flops_per_s
    bound = "the disk" if moving_s > computing_s else "the products"
    return [
        *lines,
        f"{moved}: {seconds(moving_s)} at {read / 1e9:.2g} and {write / 1e9:.2g} GB/s, beside "
        f"{seconds(computing_s)} of products: {bound} will bound it",
    ]


def _plan(program: Program, store: Store) -> Optional[tuple[StreamingPlan, str, Optional[int]]]:
    """What a step from files takes, its folder, and which of several wafers it is of."""
    folder, most = store.folder, store.memory_limit
    if folder is None or most is None:
        return None
    wafer = store.rank if store.is_shared and program.wafers > 1 else None
    specs = store.specs.values()
    return plan_streaming(program, specs, most, CpuBackend(), wafer), folder, wafer


def memory(program: Program, store: Store, held_bytes: int = 0) -> str:
    """What a step needs of memory, and what there is.

    Args:
        program: gives activations and scratch memory.
        store: gives weights and optimizer state.
        held_bytes: bytes of all these that are allocated already.
    """
    state, activations = store.total_resident_bytes, activation_bytes(program)
    return (
        f"{_size(state + activations)} of memory ({_size(state)} weights and optimizer state, "
        f"{_size(activations)} activations) of {_size(available_bytes() + held_bytes)} available"
    )


def effort(program: Program, batches: int = 1, flops_per_s: Optional[float] = None) -> str:
    """What a step computes and how long that takes here at the least.

    Args:
        program: gives the operations of a batch.
        batches: batches that a step computes here, one after the other.
        flops_per_s: what this machine reaches; measured where it is not given.
    """
    reached = flops_per_s or measured_speeds().flops_per_s
    flops = batches * program.flops
    return (
        f"{in_words(flops)} floating-point operations a step, an estimated "
        f"{seconds(flops / reached)} or more at the {reached / 1e9:.0f} GFLOP/s of a plain "
        "matrix product here"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"


def _parameters() -> int:
    return sum(
        math.prod(variable.shape.as_list()) for variable in tf.compat.v1.trainable_variables()
    )
