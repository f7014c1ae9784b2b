"""Lines that describe a compiled model: parameters, layers, memory, tokens, operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Optional

from cerebras_tf.errors import StoreError
from cerebras_tf.frontend.model_step import ModelStep
from cerebras_tf.ir.program import Instruction, Program
from cerebras_tf.kernels.compiled_bfloat16 import instructions
from cerebras_tf.kernels.instruction_set import summarize
from cerebras_tf.memoryx.disk import ON_DISK
from cerebras_tf.memoryx.disk_speed import free_bytes, measured_disk_speeds, require_free
from cerebras_tf.memoryx.process_folder import require_usable
from cerebras_tf.memoryx.store import Store
from cerebras_tf.quantities import counted, in_words, seconds
from cerebras_tf.runtime.capacity import activation_bytes, available_bytes
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.speeds import measured_speeds
from cerebras_tf.runtime.streaming_plan import StreamingPlan, plan_streaming


def describe(
    parameters: int, tokens: Optional[int], precision: str, step: Optional[ModelStep]
) -> str:
    """The lines about a model that is about to be trained.

    Args:
        tokens: tokens of a batch or micro-batch; None if unknown.
        precision: see CSRunConfig.
        step: the model's step on the wafer; None on the host. Memory is left out if it is known
            only with the first batch.
    """
    facts, lines = [f"{parameters:,} parameters"], []
    split = step is not None and step.micro_batches is not None
    if step is not None:
        program, store = step.prepared, step.store
        if program is not None:
            held = step.session.held_bytes
            facts += [
                counted(len(program.layers), "layer"),
                memory(program, store, held, step.count_together()),
            ]
            lines = streaming(program, store, step=step)
        lines += products(program, precision)
    if tokens is not None:
        facts.append(f"{tokens:,} tokens per {'micro-batch' if split else 'batch'}")
    return "\n".join([", ".join(facts), *lines])


def products(program: Optional[Program], precision: str) -> list[str]:
    """The line about bfloat16 products, if the precision asks for them.

    Args:
        program: None if it is compiled with the first batch.
        precision: see CSRunConfig.
    """
    if precision != "bfloat16":
        return []
    if program is None:
        return [summarize(instructions(), "large matrix products in bfloat16, if there are any")]
    if any(each.is_rounded for each in _instructions(program)):
        return [summarize(instructions())]
    return [
        "precision bfloat16: the model has no large matrix products, so all are computed in "
        "float32 and there is no speedup"
    ]


def _product_speed(program: Program) -> float:
    """Measured operations a second of products like those of the program."""
    rounded = any(each.is_rounded for each in _instructions(program))
    return measured_speeds(rounded=rounded).flops_per_s


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
    parameters: int,
    precision: str = "float32",
    split: bool = False,
    trains: bool = False,
) -> str:
    """The lines about a model that was compiled and not loaded.

    Args:
        precision: see CSRunConfig.
        split: whether a batch runs as micro-batches.
        trains: whether the program trains. Only training writes to memoryx_dir, so only then a
            line reports whether its disk is large enough.
    """
    layers = counted(len(program.layers), "layer")
    first = ", ".join([f"{parameters:,} parameters", layers, memory(program, store)])
    fault = disk_error(program, store) if trains else None
    faults = [] if fault is None else [f"it does not fit on this computer: {fault}"]
    moved = streaming(program, store, split, trains)
    return "\n".join([first, *moved, *products(program, precision), *faults])


def disk_error(program: Program, store: Store) -> Optional[StoreError]:
    """The error that training would raise because of memoryx_dir's disk; None if there is none.

    For a model that was compiled and not loaded: the files of a loaded one would count twice.
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
    program: Program,
    store: Store,
    split: bool = False,
    trains: bool = True,
    step: Optional[ModelStep] = None,
) -> list[str]:
    """What a step reads and writes if variables are stored in files, and what bounds its time.

    With several wafers, the figures are those of one. With micro-batches, figures are those of
    all where `step` is given, else of the last, which also moves the optimizer state. Without
    training, only weights are on the disk, in the checkpoint's own files.
    """
    found = _plan(program, store, step)
    if found is None:
        return []
    plan, folder, wafer = found
    which = "" if wafer is None else f" of wafer {wafer} of {program.wafers}"
    copies = "" if wafer is None else " and copies of layers of other wafers"
    most = f"at most {_size(plan.memory_bytes)} of it{copies} in memory"
    linked = store.local.linked_bytes
    frozen = f"{_size(linked)} weights that are not trained, " if linked else ""
    state = sum(spec.type.max_bytes for spec in store.specs.values())
    lines = [
        f"in files{which}: {_size(plan.weight_bytes)} weights, "
        f"{_size(plan.state_bytes - linked)} optimizer state, {frozen}"
        f"{_size(plan.staged_bytes)} gradients and spilled activations; {most}; "
        f"{_size(free_bytes(folder))} of disk free; a checkpoint takes up to "
        f"{_size(state - linked)}"
        if trains
        else f"in files{which}: {_size(plan.weight_bytes + plan.state_bytes)} weights; {most}"
    ]
    what = "the last micro-batch of a step" if split else "a step"
    moved = f"{what} reads {_size(plan.bytes_read)} and writes {_size(plan.bytes_written)}"
    if plan.together > 1:
        moved += f", with one pass over the weights for {plan.together} micro-batches"
    try:
        read, write = measured_disk_speeds(folder)
    except OSError:  # no space to measure with; training will raise
        return [*lines, moved]
    moving_s = plan.bytes_read / read + plan.bytes_written / write
    computing_s = plan.flops / _product_speed(program)
    bound = "the disk" if moving_s > computing_s else "computing"
    return [
        *lines,
        f"{moved}: {seconds(moving_s)} at {read / 1e9:.2g} and {write / 1e9:.2g} GB/s; matrix "
        f"products take {seconds(computing_s)}: {bound} will be the bottleneck",
    ]


def _plan(
    program: Program, store: Store, step: Optional[ModelStep] = None
) -> Optional[tuple[StreamingPlan, str, Optional[int]]]:
    """The plan of a step from files, the folder, and the rank with several wafers."""
    folder, most = store.folder, store.memory_limit
    if folder is None or most is None:
        return None
    wafer = store.rank if store.is_shared and program.wafers > 1 else None
    specs = store.specs.values()
    given = () if step is None else (step.prepared_micro_batches, step.activation_bytes)
    return plan_streaming(program, specs, most, CpuBackend(), wafer, *given), folder, wafer


def memory(program: Program, store: Store, held_bytes: int = 0, together: int = 1) -> str:
    """The memory that a step needs, and the memory that is available.

    Args:
        held_bytes: bytes of these that are allocated already.
        together: micro-batches that have activations at once.
    """
    state, free = store.total_resident_bytes, store.free_bytes
    free = available_bytes() + held_bytes if free is None else free
    activations = activation_bytes(program) + (together - 1) * program.arena_bytes
    return (
        f"{_size(state + activations)} of memory ({_size(state)} weights and optimizer state, "
        f"{_size(activations)} activations) of {_size(free)} available"
    )


def effort(program: Program, batches: int = 1, flops_per_s: Optional[float] = None) -> str:
    """The floating-point operations of a step, and the least time they take on this computer.

    Args:
        flops_per_s: speed of matrix products; None to measure it.
    """
    reached = flops_per_s or _product_speed(program)
    flops = batches * program.flops
    return (
        f"{in_words(flops)} floating-point operations per step, estimated to take at least "
        f"{seconds(flops / reached)} at the measured {reached / 1e9:.0f} GFLOP/s of a matrix "
        "product"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"
