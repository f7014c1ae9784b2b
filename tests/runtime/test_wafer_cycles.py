"""A run without arithmetic reports the bytes and cycles of a real one."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir.program import RANDOM_STEP
from cerebras_tf.memoryx.null_store import NullStore
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Machine
from cerebras_tf.runtime.null import NullBackend
from cerebras_tf.runtime.wafer_cycles import WaferCycles
from cerebras_tf.wafer.system import load_system
from tests.compiler.test_assemble import STEPS
from tests.machines import store_of
from tests.runtime.test_null import attention_step
from tests.steps import features_of, residual_step, starting_values

CS2 = load_system()


def counted(step, features=None, steps=2):
    """What a real and a null machine report of the same program."""
    backend = CpuBackend()
    program = compile_step(step, Options(price=backend.price))
    found = []
    for kind, store in (
        (backend, store_of(step.specs.values(), starting_values(step))),
        (NullBackend(backend), NullStore(step.specs.values())),
    ):
        listener = WaferCycles(program, CS2)
        machine = Machine(program, store, kind, [listener])
        for _ in range(steps):
            machine.run(features or features_of(step))
        assert (listener.bytes_in, listener.bytes_out) == (machine.bytes_in, machine.bytes_out)
        found.append(listener)
    return program, found


@pytest.mark.parametrize("name", [name for name in STEPS if name != "unknown sizes"])
def test_both_report_the_same_bytes_and_cycles(name):
    _, (real, null) = counted(STEPS[name]())
    assert real.work == null.work and real.work.total > 0
    assert real.link_cycles == null.link_cycles
    assert (real.bytes_in, real.bytes_out) == (null.bytes_in, null.bytes_out)


def test_cycles_are_those_of_the_products():
    rows, blocks = 4096, 3
    step = residual_step(blocks, rows=rows)
    _, (real, _) = counted(step, steps=1)
    weights = 2 * 16 * 16 + blocks * 2 * 16 * 64
    # The gradient of the first product's input is not needed.
    multiply_adds = rows * (3 * weights - 16 * 16)
    assert real.work.compute == pytest.approx(multiply_adds / (CS2.cores * CS2["simd"]))


def test_attention_and_loss_count_as_products():
    step = attention_step()
    features = features_of(step)
    features["labels"] = np.arange(512, dtype=np.int64)
    features[RANDOM_STEP] = np.array(0, np.int64)
    _, (real, null) = counted(step, features, 1)
    assert real.work == null.work
    attention = 2 * (2 * 256 * 4 * 16 * 256)  # of features: no gradient flows there
    loss = 3 * 512 * 64 * 1000
    expected = (attention + loss) / (CS2.cores * CS2["simd"])
    assert real.work.compute == pytest.approx(expected)
