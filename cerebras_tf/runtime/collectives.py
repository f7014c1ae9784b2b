"""Runs collective ops on the wafers of a swarm; with one wafer, kernels compute them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Optional

import numpy as np

from cerebras_tf.errors import DataError
from cerebras_tf.ir import Array
from cerebras_tf.ir.program import Instruction
from cerebras_tf.ops import OPS
from cerebras_tf.runtime.backend import Call
from cerebras_tf.runtime.dispatch import copying
from cerebras_tf.swarmx.swarm import Pending, Swarm, total


class CollectiveCalls:
    """What a backend needs to run collective ops."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._pending: dict[int, Pending] = {}  # by the address of the array

    def handles(self, op: str) -> bool:
        """Whether an op is a collective that needs other wafers."""
        return self._swarm.size > 1 and op in OPS and OPS[op].collective

    def load(self, instruction: Instruction) -> Call:
        """The call of an instruction."""
        if instruction.op == "mean_start":
            root = instruction.attrs["root"]
            in_place = instruction.attrs["in_place"]
            return lambda arrays, out: self._start(arrays, out, in_place, root)
        if instruction.op == "mean_wait":
            return self._wait
        if instruction.op == "wafer_sum":
            return copying(lambda x: total(self._swarm, x))
        if instruction.op == "wafer_pick":
            return copying(functools.partial(self._pick, instruction.attrs["roots"]))
        return copying(lambda x, **_: self._concat(x, instruction.source))

    def finish(self) -> None:
        """Waits for collectives that a failed step has started; they write to memory used again."""
        while self._pending:
            self._pending.popitem()[1].wait()

    def _start(
        self, arrays: Sequence[Array], out: Sequence[Optional[Array]], in_place: bool, root: int
    ) -> Sequence[Array]:
        (x,) = arrays
        if not in_place:
            target = np.empty_like(x) if out[0] is None else out[0]
            target[...] = x
            x = target
        self._pending[_address(x)] = self._swarm.start_mean(x, None if root < 0 else root)
        return [x]

    def _wait(self, arrays: Sequence[Array], out: Sequence[Optional[Array]]) -> Sequence[Array]:
        (x,) = arrays
        self._pending.pop(_address(x)).wait()
        return [x]

    def _pick(self, roots: Sequence[int], *own: Array) -> tuple[Array, ...]:
        """Each array of its root; one collective sends all."""
        found: list[Array] = list(own)
        parts = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in own]
        ends = np.cumsum([part.size for part in parts])
        theirs = self._swarm.gather(np.concatenate(parts))
        for at, (root, end) in enumerate(zip(roots, ends)):
            part = theirs[root, end - parts[at].size : end]
            found[at] = np.array(part).view(own[at].dtype).reshape(own[at].shape)
        return tuple(found)

    def _concat(self, x: Array, source: str) -> Array:
        shapes = {tuple(shape) for shape in self._swarm.objects(x.shape)}
        if len(shapes) > 1:
            raise DataError(
                f"'{source}': sparse gradients must have the same number of rows on every wafer. "
                f"Received: {sorted(shapes)}. Use batches of one shape, or multiply the table by "
                "1.0 to make its gradient dense."
            )
        return np.concatenate(list(self._swarm.gather(x)))


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
