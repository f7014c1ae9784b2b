"""A listener that counts what a run of a schedule would take of a real machine: cycles and bytes.

It sees the steps and nothing else, so a run without arithmetic counts what a real one does.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir.program import Instruction, Program
from cerebras_tf.ir.schedule import Entry, Run, StreamIn, StreamOut
from cerebras_tf.ops.products import Places, products_of
from cerebras_tf.wafer.cycles import Cycles, product_cycles, vector_cycles
from cerebras_tf.wafer.system import System
from cerebras_tf.wafer.workload import Product

_FLOAT_BYTES = 4  # an element of a program, whose values are float32


class WaferCycles:
    """Counts cycles and bytes of a program's steps on a machine.

    Weights travel beside the work, so their cycles are counted apart. Updates are MemoryX's and
    take none.

    Attributes:
        work: cycles of forward and backward passes, by cause, at the full speed of the machine.
        link_cycles: cycles that what was streamed takes on the links.
        bytes_in: bytes streamed in.
        bytes_out: bytes streamed out.
    """

    def __init__(self, program: Program, system: System) -> None:
        self.work = Cycles()
        self.link_cycles = 0.0
        self.bytes_in = self.bytes_out = 0
        self._program = program
        self._system = system
        self._bodies: dict[tuple[int, str], Cycles] = {}

    def begin(self, program: Program) -> None:
        """Nothing: it was made for the program."""

    def before(self, step: Entry) -> None:
        """Nothing: steps count once they have run."""

    def after(self, step: Entry) -> None:
        """Counts a step."""
        slots = self._program.slots
        if isinstance(step, Run) and step.direction != "update":
            key = step.body, step.direction
            if key not in self._bodies:
                self._bodies[key] = self._body(step)
            self.work = self.work + self._bodies[key]
        elif isinstance(step, StreamIn):
            size = sum(slots[slot].type.most_bytes for slot in step.slots)
            self.bytes_in += size
            self._stream(size)
        elif isinstance(step, StreamOut):
            size = sum(slots[slot].type.most_bytes for _, slot in step.stores)
            self.bytes_out += size
            self._stream(size)

    def _stream(self, size: int) -> None:
        self.link_cycles += size / self._system.io_bytes_per_s * self._system["clock"]

    def _body(self, step: Run) -> Cycles:
        total = Cycles()
        for item in self._program.bodies[step.body]:
            total = total + self._instruction(item, step)
        return total

    def _instruction(self, item: Instruction, step: Run) -> Cycles:
        program, system = self._program, self._system
        inputs = [step.slots[i] for i in item.inputs]
        at = Places(
            [program.slots[slot].type for slot in inputs],
            [program.slots[step.slots[i]].type for i in item.outputs],
            [program.shows_variable(slot) for slot in inputs],
            item.attrs,
        )
        found = products_of(item.op, at, step.direction == "backward")
        if found is None:
            moved = item.cost.bytes_read + item.cost.bytes_written
            return vector_cycles(moved / _FLOAT_BYTES, system.cores, system)
        total: Optional[Cycles] = None
        for size in (*found[0], *found[1]):
            cycles = product_cycles(Product(*size), system)
            total = cycles if total is None else total + cycles
        return total or Cycles()
