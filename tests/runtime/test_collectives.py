"""What is on its way between wafers: a step that failed leaves none of it to the next."""

from __future__ import annotations

import numpy as np

from cerebras_tf.ir import TensorType
from cerebras_tf.ir.program import Instruction
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.swarmx.swarm import Alone


class Slow(Alone):
    """Two wafers of equal values, whose means arrive when they are waited for."""

    size = 2

    def __init__(self):
        self.waited = 0

    def start_mean(self, array, root=None):
        return self

    def wait(self):
        self.waited += 1


def calls(backend):
    """The calls that start a mean in place and wait for it."""
    types = [TensorType("float32", (4,))]
    start = Instruction("mean_start", (0,), (0,), {"in_place": True, "root": -1})
    return [
        backend.load(i, types, types) for i in (start, Instruction("mean_wait", (0,), (0,), {}))
    ]


def test_a_step_begins_when_what_was_on_its_way_has_arrived():
    swarm = Slow()
    backend = CpuBackend(swarm)
    start, wait = calls(backend)
    one, other = np.zeros(4, "f"), np.zeros(4, "f")
    backend.begin()
    start([one], [one])
    start([other], [other])
    wait([one], [one])
    assert swarm.waited == 1
    backend.begin()  # the step before ended with an error
    assert swarm.waited == 2
    start([other], [other])
    wait([other], [other])
    assert swarm.waited == 3
    backend.begin()
    assert swarm.waited == 3
