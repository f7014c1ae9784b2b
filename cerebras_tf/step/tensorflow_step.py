"""The step of a TensorFlow model: its tensors and captures as a front end, and its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.order import all_before
from cerebras_tf.capture.random import drawn_seed
from cerebras_tf.capture.variables import tensor_type
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.frontend.front_end import Feature
from cerebras_tf.frontend.model_step import ModelStep, RunSettings
from cerebras_tf.ir import StepGraph, TensorType
from cerebras_tf.ir.program import BEFORE
from cerebras_tf.memoryx.store import Store
from cerebras_tf.step.graph_digest import graph_digest, tensor_named
from cerebras_tf.step.split_batch import SplitBatch
from cerebras_tf.tf_session.structures import for_tensorflow, leaves

MakeCapture = Callable[[dict[Any, TensorType]], Capture]


@dataclass
class TensorFlowModel:
    """A TensorFlow graph as a front end; see frontend.front_end.FrontEnd.

    Attributes:
        make_capture: returns a new capture for the types of the fed tensors.
        make_fallback: likewise, with TensorFlow's own backward graph; None outside training.
        fed: tensors that the session feeds, in order.
        effects: operations whose assignments a training step makes; none outside training.
        global_step: name of the global step variable.
        control_inputs: those of an operation as model_fn made them.
        loss: name of the tensor whose value is averaged over wafers.
        tensors: tensors whose values may be asked for, by name.
    """

    make_capture: MakeCapture
    make_fallback: Optional[MakeCapture]
    fed: Sequence[Any]
    effects: Sequence[Any]
    global_step: str
    control_inputs: Callable[[Any], Iterable[Any]]
    loss: Optional[str] = None
    tensors: dict[str, Any] = field(default_factory=dict)
    split: Optional[SplitBatch] = None

    def __post_init__(self) -> None:
        found = [feature_of(tensor) for tensor in self.fed]
        self.features = found if self.split is None else self.split.sized(found)
        self.trains = bool(self.effects)
        self.has_fallback = self.make_fallback is not None

    @property
    def results(self) -> Mapping[str, TensorType]:
        """Types of the tensors whose values can be returned."""
        return {name: tensor_type(tensor) for name, tensor in self.tensors.items()}

    def add_input(self, tensor: Any) -> None:
        """Makes a tensor an input of the step."""
        self.fed, self.features = [*self.fed, tensor], [*self.features, feature_of(tensor)]

    def capture(
        self,
        types: Mapping[str, TensorType],
        results: Collection[str],
        updates: bool,
        fallback: bool = False,
    ) -> StepGraph:
        """Captures one step; see FrontEnd.capture."""
        make = self.make_fallback if fallback else self.make_capture
        assert make is not None
        capture = make({tensor: types[tensor.name] for tensor in self.fed})
        wanted = {name: self.tensors[name] for name in results}
        return capture.run(wanted, self.effects if updates else [])

    def digest(self, results: Iterable[str], updates: bool) -> Optional[str]:
        """Hash of the operations that a step with these results needs."""
        graph = self.fed[0].graph
        roots = list(self.effects) if updates else []
        for name in results:
            if ":" not in name:  # not a tensor; every program has it
                continue
            tensor = self.tensors[name] if name in self.tensors else tensor_named(graph, name)
            if tensor is None:
                return None
            roots.append(tensor.op)
        return graph_digest(graph, roots, self.fed, self.control_inputs)

    def seed(self) -> int:
        """The seed drawn for the graph."""
        return drawn_seed(self.fed[0].graph)


def feature_of(tensor: Any) -> Feature:
    """A fed tensor as a feature."""
    shape = tuple(tensor.shape.as_list()) if tensor.shape.rank is not None else None
    return Feature(tensor.name, tensor.dtype.base_dtype.name, shape)


def can_split(batch: Any, fed: Iterable[Any]) -> bool:
    """Whether a model could be built on the first rows of a batch, and the session feed all rows.

    Args:
        batch: features and labels as the input function returns them.
    """
    tensors = [leaf for leaf in leaves(batch) if not tf.is_tensor(leaf) or leaf.shape.rank != 0]
    if not all(isinstance(tensor, tf.Tensor) and tensor.shape.rank for tensor in tensors):
        return False
    rows = {tensor.shape[0] for tensor in tensors}
    names, ops = {tensor.name for tensor in tensors}, {tensor.op for tensor in tensors}
    return (
        len(rows) == 1
        and None not in rows
        and all(each.name in names or ops.isdisjoint(all_before([each.op])) for each in fed)
    )


class TensorFlowStep(ModelStep):
    """Runs the steps of a TensorFlow model.

    Attributes:
        tensors: tensors whose values may be asked for, by name.
        split: how a batch is split into micro-batches; None if it runs whole.
        added: values of tensors that became inputs, by tensor.
        error: the error that ended the last step, if any; TensorFlow's sessions cannot pass it on.
    """

    error: Optional[BaseException] = None

    def __init__(
        self, model: TensorFlowModel, store: Store, options: Options, settings: RunSettings
    ) -> None:
        super().__init__(model, store, options, settings)
        self.tensors = model.tensors
        split = settings.micro_batches
        self.split = split if isinstance(split, SplitBatch) else None
        self._names = [tensor.name for tensor in model.fed]
        self._saved: Optional[tuple[str, int]] = None
        self._tensorflow_model = model
        self.added: dict[Any, np.ndarray] = {}

    def add_input(self, tensor: Any) -> None:
        """Makes a tensor an input of the steps that follow, whose value is in `added`."""
        self._tensorflow_model.add_input(tensor)
        self.added[tensor] = np.empty(0)
        self.kind = f"with {', '.join(added.name for added in self.added)}"

    def run_before(
        self, global_step: int, arrays: Mapping[str, np.ndarray], wanted: Sequence[str]
    ) -> list[np.ndarray]:
        """Computes values of the wafer that the session needs before a step.

        Args:
            arrays: of the fed tensors that do not need these values.
            wanted: names of the values.
        """
        given = {
            feature.name: arrays[feature.name]
            if feature.name in arrays
            else np.zeros(feature.smallest_type.static_shape, feature.smallest_type.numpy_dtype)
            for feature in self._tensorflow_model.features
        }
        self.client.global_step = global_step
        found = self.client.run(given, frozenset(wanted), False, BEFORE)
        return [np.array(found[name]) for name in wanted]

    def run_arrays(self, global_step: int, arrays: Sequence[np.ndarray]) -> int:
        """Runs a step on the arrays of the fed tensors, in order; see ModelStep.run."""
        names = self._names
        if self.split is None or self.split.rows is not None:
            added = {tensor.name: array for tensor, array in self.added.items()}
            return self.run({**dict(zip(names, arrays)), **added}, global_step)
        starts = [number * len(names) for number in range(self.split.count)]
        batches = [dict(zip(names, arrays[start : start + len(names)])) for start in starts]
        return self.run(batches, global_step)

    def end_of_data(self, operation: Any) -> None:
        """Logs how many batches of an incomplete step are dropped.

        Args:
            operation: the one that found no batch.
        """
        if self.split is None or operation is None:
            return
        count = self.split.dropped(operation.name)
        if count:
            self._log(
                f"training ends: the data has ended. An incomplete last step is dropped: {count} "
                f"of its {self.split.count} batches"
            )

    def result(self, name: str) -> np.ndarray:
        """A wanted value of the last step, as an array of TensorFlow's."""
        program = self.client.plan
        assert program is not None
        return for_tensorflow(self.results[name], program.slots[program.results[name]].type.dtype)

    def saved_as(self, prefix: str) -> None:
        """Records that a checkpoint holds the current variables."""
        self._saved = os.path.abspath(prefix), self.session.version

    def is_saved_as(self, prefix: str) -> bool:
        """Whether a checkpoint holds the current variables."""
        return self._saved == (os.path.abspath(prefix), self.session.version)
