"""Brings new values of variables into the dtype that they rest in between steps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from cerebras_tf.capture.registry import Lowering
from cerebras_tf.ir import Value, Variable

_LARGEST = 2**63 - 1


def brought_to_rest(
    low: Lowering, updates: Mapping[str, Value], resting: Mapping[str, Variable]
) -> dict[str, Value]:
    """New values of variables, those that rest in bfloat16 rounded stochastically.

    Rounding to nearest would stop a moving average whose share of new values is less than half a
    unit in the last place: 0.001, of a second moment, is less than 2^-9. What an element becomes
    depends on the variable's name, the step and the element's number, and on nothing else.

    Args:
        low: the capture.
        updates: new values by variable name.
        resting: variables that rest in bfloat16 and are float32 in the model, by name.
    """
    return {
        name: low.b.op("round_randomly", value, _key(low, name)) if name in resting else value
        for name, value in updates.items()
    }


def _key(low: Lowering, name: str) -> Value:
    """A number for a variable, another one at every step."""
    digest = hashlib.blake2b(f"{name} at rest".encode(), digest_size=16).digest()
    seeds = low.b.constant(np.frombuffer(digest, "<i8").astype(np.int64))
    limits = {"low": 0, "high": _LARGEST}
    draws = low.random_step(for_all=True)
    return low.b.op("random_uniform_int", draws, seeds, shape=(), dtype="int64", **limits)
