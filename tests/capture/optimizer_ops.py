"""Runs one optimizer operation of TensorFlow over several steps, captured and by its own kernel.

Operands get values by their names in the operation definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

# Private API of TF 2.15: the definitions behind tf.raw_ops.
from tensorflow.python.framework import op_def_registry

from cerebras_tf.ir import StepGraph
from tests.capture.steps_of_both import Built, check_steps

SHAPE = (6, 5)
STEPS = 4
HYPERPARAMETERS = {
    "lr": 0.05,
    "alpha": 0.1,
    "momentum": 0.8,
    "rho": 0.9,
    "epsilon": 1e-3,
    "beta": 0.7,
    "beta1": 0.8,
    "beta2": 0.95,
    "beta1_power": 0.64,
    "beta2_power": 0.9,
    "logbase": 0.9,
    "sign_decay": 0.6,
    "l1": 0.3,
    "l2": 0.2,
    "l2_shrinkage": 0.1,
    "lr_power": -0.5,
}
# Variables that may have either sign; the others hold sums or means of squares.
SIGNED = ("var", "m", "mg", "mom", "linear", "gradient_accumulator")


def operation_types(prefix: str) -> list[str]:
    """Types of all of TensorFlow's operations that begin so."""
    return sorted(name for name in dir(tf.raw_ops) if name.startswith(prefix))


def check_optimizer(op_type: str, **given: Any) -> StepGraph:
    """Asserts that the lowering of an optimizer operation moves variables as its kernel does.

    Args:
        op_type: as in tf.raw_ops.
        given: attributes, and hyperparameters that are not those of the table above.
    """
    definition = op_def_registry.get(op_type)
    names = [argument.name for argument in definition.input_arg]
    sparse = "indices" in names

    def build(grad: Any, ids: Any, step: Any) -> Built:
        fed = {"grad": grad, "delta": grad, "indices": ids, "global_step": step}
        operands = dict(given)
        for name, argument in zip(names, definition.input_arg):
            if argument.type == tf.resource.as_datatype_enum:
                operands[name] = tf.Variable(_initial(name), name=name).handle
            elif name in fed:
                operands[name] = fed[name]
            else:
                operands.setdefault(name, tf.constant(HYPERPARAMETERS[name]))
        return Built(effects=[getattr(tf.raw_ops, op_type)(**operands)])

    random = np.random.default_rng(3)
    batches = []
    for number in range(STEPS):
        ids = random.permutation(SHAPE[0])[:4]
        shape = (len(ids), *SHAPE[1:]) if sparse else SHAPE
        grad = random.standard_normal(shape).astype(np.float32)
        batches.append((grad, ids.astype(np.int32), np.asarray(number + 1, np.int64)))
    return check_steps(build, *batches)


def _initial(name: str) -> np.ndarray:
    random = np.random.default_rng([5, *name.encode()])
    if name in SIGNED:
        return (0.4 * random.standard_normal(SHAPE)).astype(np.float32)
    return random.uniform(0.5, 1.5, SHAPE).astype(np.float32)
