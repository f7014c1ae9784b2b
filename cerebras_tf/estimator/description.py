"""Says in a line what a model is and takes: parameters, layers, memory, tokens, operations."""

from __future__ import annotations

import math
from typing import Optional

import tensorflow as tf

from cerebras_tf.estimator.call import Call
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.store import Store
from cerebras_tf.runtime.capacity import activation_bytes, available_bytes
from cerebras_tf.runtime.speed import product_flops_per_s

_SCALES = ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def describe(call: Call) -> str:
    """The line on a model that is about to be trained.

    The model is the one of the default graph; memory is left out where it is known only with the
    first batch, or where the host runs the model.
    """
    parts = [f"{_parameters():,} parameters"]
    if call.model is not None:
        program, store = call.model.step.prepared, call.model.store
        if program is not None:
            held = call.model.step.session.held_bytes
            parts += [f"{len(program.layers)} layers", memory(program, store, held)]
    if call.tokens is not None:
        parts.append(f"{call.tokens:,} tokens a batch")
    return ", ".join(parts)


def describe_program(program: Program, store: Store) -> str:
    """The line on a model that was compiled and not loaded."""
    layers = f"{len(program.layers)} layers"
    return ", ".join([f"{_parameters():,} parameters", layers, memory(program, store)])


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


def effort(program: Program, flops_per_s: Optional[float] = None) -> str:
    """What a step computes and how long that takes here at the least.

    Args:
        program: gives the operations.
        flops_per_s: what this machine reaches; measured where it is not given.
    """
    reached = flops_per_s or product_flops_per_s()
    return (
        f"{in_words(program.flops)} floating-point operations a step, an estimated "
        f"{program.flops / reached:.2g} s or more at the {reached / 1e9:.0f} GFLOP/s of a plain "
        "matrix product here"
    )


def in_words(number: int) -> str:
    """A number by its name, such as `12.3 billion`."""
    for scale, name in _SCALES:
        if number >= scale:
            return f"{number / scale:.3g} {name}"
    return f"{number:,}"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _parameters() -> int:
    return sum(
        math.prod(variable.shape.as_list()) for variable in tf.compat.v1.trainable_variables()
    )
