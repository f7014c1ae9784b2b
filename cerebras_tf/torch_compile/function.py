"""A captured graph as a differentiable function of torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import torch

from cerebras_tf.capture_torch.lowering import array_of
from cerebras_tf.errors import DataError
from cerebras_tf.ir import Array
from cerebras_tf.ir.program import RANDOM_STEP
from cerebras_tf.torch_compile.graph import (
    CHANGED,
    COTANGENT,
    GRADIENT,
    INPUT,
    OUTPUT,
    CapturedGraph,
    is_scaled,
)
from cerebras_tf.torch_compile.programs import LOCK, Call, Programs

# Random ops draw by a number below this from torch's generator.
_MOST_DRAWN = 2**62


class GraphFunction:
    """Runs a captured graph; gradients pass through it.

    Inputs are read in place. Random ops are seeded by torch's default generator, from which every
    call draws one number if the graph has such ops.

    Args:
        graph: what is computed.

    Attributes:
        cotangents: positions of the outputs that had a cotangent in the last backward pass, or
            probably have: the scalars, if there are any.
    """

    def __init__(self, graph: CapturedGraph) -> None:
        self.graph = graph
        scalars = [at for at in graph.differentiable if not graph.outputs[at].shape]
        self.cotangents = frozenset(scalars or graph.differentiable)
        self._programs: dict[frozenset[int], Programs] = {}

    def prepare(self, args: Sequence[Any]) -> None:
        """Compiles what a call with these arguments needs, if it is not compiled.

        Raises:
            UnsupportedOpError: operations have no IR form, or no gradient.
        """
        cotangents = self.cotangents if self._needs_gradients() else frozenset[int]()
        self.programs(cotangents).prepare(self.graph.sizes(args))

    def _needs_gradients(self) -> bool:
        return bool(torch.is_grad_enabled() and self.graph.trained and self.graph.differentiable)

    def programs(self, cotangents: frozenset[int]) -> Programs:
        """The programs of the passes for these cotangents."""
        with LOCK:
            if cotangents not in self._programs:
                self._programs[cotangents] = Programs(self.graph, cotangents)
            return self._programs[cotangents]

    def __call__(self, *args: Any) -> list[Any]:
        """Runs the graph on tensors and sizes; returns its outputs."""
        graph = self.graph
        if self._needs_gradients():
            found = list(_Node.apply(self, *args))
        else:
            work = _Work(self, args, frozenset())
            found = work.outputs()
            work.call.release()
        outputs: list[Any] = []
        for at, value in enumerate(graph.outputs):
            if at in graph.same_as_input:
                outputs.append(args[graph.same_as_input[at]])
            elif isinstance(value, torch.Tensor):
                outputs.append(found.pop(0))
            else:
                outputs.append(graph.size(value, args))
        return outputs


class _Work:
    """What a call computes, with what is needed to compute it again.

    Args:
        function: what is called.
        args: tensors and sizes.
        cotangents: positions of the outputs that probably have one; none for the forward pass
            alone.

    Attributes:
        call: the activations.
        computed: see CapturedGraph.
        read: the tensors that the backward pass reads.
    """

    def __init__(
        self, function: GraphFunction, args: Sequence[Any], cotangents: frozenset[int]
    ) -> None:
        self._function, self._graph, self._cotangents = function, function.graph, cotangents
        changed = self._graph.changed
        # The backward pass reads the old values of inputs that the call changes.
        self._args = [
            value.detach().clone() if cotangents and at in changed else value
            for at, value in enumerate(args)
        ]
        self.computed = self._graph.computed
        self._changed = [args[at] for at in changed]
        self._versions = list(map(_version, self._args))
        self._drawn: Optional[Array] = None
        self.call = self._started(cotangents)
        names = self.call.read_later
        self.read = [x for at, x in enumerate(self._args) if INPUT.format(at) in names]

    def _started(self, cotangents: frozenset[int]) -> Call:
        """Runs the forward pass."""
        sizes = self._graph.sizes(self._args)
        programs = self._function.programs(cotangents)
        names = programs.prepare(sizes).program.features
        features = self._graph.features(self._args, names)
        if RANDOM_STEP in names:
            if self._drawn is None:
                self._drawn = np.array(int(torch.randint(_MOST_DRAWN, ())), np.int64)
            features[RANDOM_STEP] = self._drawn
        with LOCK:
            return programs.start(sizes, features)

    def outputs(self) -> list[torch.Tensor]:
        """Changes inputs in place, and returns the outputs that are new tensors."""
        for at, tensor in zip(self._graph.changed, self._changed):
            tensor.copy_(_viewed(self.call.value(CHANGED.format(at)), tensor.dtype))
        return [
            _copied(self.call.value(OUTPUT.format(at)), self._graph.outputs[at].dtype)
            for at in self._graph.computed
        ]

    def gradients(self, cotangents: Mapping[int, torch.Tensor]) -> list[Optional[torch.Tensor]]:
        """The gradients of the inputs; runs the forward pass again if it must."""
        given, call = frozenset(cotangents), self.call
        if given != self._cotangents or call.has_run_backward:
            self._function.cotangents = self._cotangents = given
            call.release()
            self._require_unchanged()
            call = self.call = self._started(given)
        scale: Optional[torch.Tensor] = None
        features: dict[str, Array] = {}
        if is_scaled(self._graph, given):
            (scale,) = cotangents.values()
        else:
            features = {COTANGENT.format(at): array_of(d) for at, d in cotangents.items()}
        with LOCK:
            call.run_backward(features)
            found = [
                _copied(call.value(name), value.dtype, scale) if name in call.results else None
                for name, value in zip(map(GRADIENT.format, range(len(self._args))), self._args)
            ]
        call.release()
        return found

    def _require_unchanged(self) -> None:
        for at, value in enumerate(self._args):
            if _version(value) != self._versions[at]:
                raise DataError(
                    "backward: inputs of the compiled graph must not change in place between its "
                    f"forward pass and a second backward pass. Received: input {at}, changed. "
                    "Clone it."
                )


class _Node(torch.autograd.Function):  # type: ignore[misc]
    """The node of a call in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, function: GraphFunction, *args: Any) -> tuple[torch.Tensor, ...]:
        graph = function.graph
        ctx.work = work = _Work(function, args, function.cotangents)
        outputs = work.outputs()
        ctx.save_for_backward(*work.read)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for at, x in zip(graph.computed, outputs) if at not in graph.differentiable)
        )
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: Optional[torch.Tensor]) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018  # raises an error if they were changed or freed
        work: _Work = ctx.work
        given = {at: value for at, value in zip(work.computed, cotangents) if value is not None}
        return None, *work.gradients(given)


def _version(value: Any) -> int:
    """A number that grows when a tensor is changed in place."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def _viewed(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """An array of a program as a tensor that shares its memory."""
    tensor = torch.from_numpy(array if array.flags.writeable else np.array(array))
    is_bits = array.dtype == np.uint16 and dtype == torch.bfloat16
    return tensor.view(torch.bfloat16) if is_bits else tensor


def _copied(array: Array, dtype: torch.dtype, scale: Optional[torch.Tensor] = None) -> torch.Tensor:
    """A new tensor with the values of an array, multiplied by a number."""
    source, made = _viewed(array, dtype), torch.empty(array.shape, dtype=dtype)
    if scale is None or scale == 1:
        return made.copy_(source)
    if dtype == source.dtype:
        return torch.mul(source, scale.to(dtype), out=made)
    return made.copy_(source * scale.to(source.dtype))
