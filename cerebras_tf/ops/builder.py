"""Emits nodes with inferred types into a graph, and folds constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Array, Graph, Node, TensorType, Value
from cerebras_tf.ops import registry

Operand = Union[Value, Array, int, float, bool]
# Computes an op on arrays.
Evaluate = Callable[[str, Sequence[Array], dict[str, Any]], "tuple[Array, ...]"]
# The largest result in bytes that is folded while building.
_FOLD_BYTES = 1 << 16


class Builder:
    """Appends nodes to a graph.

    Attributes:
        evaluate: if given, folds nodes whose operands are all constant.
        replaced: replacements of values as operands of new nodes.
        source: name recorded on new nodes.
        direction: "forward", "backward" or "update", recorded on new nodes.
        layer: layer number, recorded on new nodes.
    """

    def __init__(self, graph: Graph, evaluate: Optional[Evaluate] = None) -> None:
        self.graph = graph
        self.evaluate = evaluate
        self.replaced: dict[Value, Value] = {}
        self.source = ""
        self.direction = "forward"
        self.layer = -1

    def op(self, name: str, *operands: Operand, **attrs: Any) -> Value:
        """Emits an op of one output; numbers become constants of the first operand's dtype."""
        outputs = self.multi(name, *operands, **attrs)
        if len(outputs) != 1:
            raise GraphError(
                f"op {name}: one output expected. Received: {len(outputs)}. Use multi()."
            )
        return outputs[0]

    def multi(self, name: str, *operands: Operand, **attrs: Any) -> list[Value]:
        """Emits an op and returns all its outputs."""
        values = self._operands(operands)
        types = registry.infer(name, values, attrs)
        folded = self._fold(name, values, attrs, types)
        if folded is not None:
            return folded
        return self.emit(name, values, attrs, types).outputs

    def emit(
        self, name: str, values: Sequence[Value], attrs: dict[str, Any], types: list[TensorType]
    ) -> Node:
        """Appends a node whose types are already known."""
        node = self.graph.make_node(name, values, attrs, types, self.source)
        node.direction = self.direction
        node.layer = self.layer
        self.graph.nodes.append(node)
        return node

    def constant(self, array: Any, dtype: Optional[str] = None) -> Value:
        """Emits a constant; `dtype` is an IR dtype, by default that of the array."""
        value = np.asarray(array)
        wanted = dtype or value.dtype.name
        value = value.astype(TensorType(wanted, ()).numpy_dtype, copy=False)
        type = TensorType(wanted, value.shape)
        return self.emit("constant", [], {"value": value, "dtype": wanted}, [type]).output

    def _operands(self, operands: Sequence[Operand]) -> list[Value]:
        like = next((item.dtype for item in operands if isinstance(item, Value)), None)
        values = []
        for item in operands:
            if isinstance(item, Value):
                values.append(self.replaced.get(item, item))
            elif isinstance(item, (bool, np.ndarray)):
                values.append(self.constant(item))
            else:
                values.append(self.constant(item, like or "float32"))
        return values

    def _fold(
        self, name: str, values: list[Value], attrs: dict[str, Any], types: list[TensorType]
    ) -> Optional[list[Value]]:
        if self.evaluate is None or not values or not registry.can_fold(name, attrs):
            return None
        arrays = [value.constant for value in values]
        known = [array for array in arrays if array is not None]
        if len(known) != len(arrays):
            return None
        if any(not type.is_static or type.max_bytes > _FOLD_BYTES for type in types):
            return None
        results = self.evaluate(name, known, attrs)
        return [self.constant(array, type.dtype) for array, type in zip(results, types)]
