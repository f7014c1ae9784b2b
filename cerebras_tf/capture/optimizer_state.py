"""The variables that an optimizer operation reads and assigns: whole, or the rows it names.

Formulas written with it serve an operation's dense and its sparse form. It deliberately holds no
formula.
"""

from __future__ import annotations

from typing import Any

from cerebras_tf.capture.optimizer import assign
from cerebras_tf.ir import Value


class OptimizerState:
    """Variables and operands of one ResourceApply* or ResourceSparseApply* operation.

    Attributes:
        operands: values of the operation's other inputs, row numbers left out, by their names
            in TensorFlow's operation definition ("lr", "grad", ...).
    """

    def __init__(self, c: Any, op: Any) -> None:
        """Takes the operation apart.

        Args:
            c: the capture.
            op: an optimizer operation; its row numbers must be unique, as optimizers make them.
        """
        self._c, self._op = c, op
        names = [argument.name for argument in op.op_def.input_arg]
        given = dict(zip(names, op.inputs))
        self._handles = {
            name: tensor for name, tensor in given.items() if tensor.dtype.name == "resource"
        }
        self.operands: dict[str, Value] = {
            name: c.value(tensor) for name, tensor in given.items() if name not in self._handles
        }
        self._ids = self.operands.pop("indices", None)

    def read(self, name: str) -> Value:
        """Value that a variable, or its rows, have now; `name` as in the definition ("accum")."""
        value: Value = self._c.state.read(self._handles[name])
        if self._ids is not None:
            value = self._c.b.op("gather", value, self._ids, axis=0, batch_dims=0)
        return value

    def write(self, name: str, value: Value) -> None:
        """Assigns a variable, or its rows."""
        handle = self._handles[name]
        if self._ids is not None:
            table = self._c.state.read(handle)
            value = self._c.b.op("rows_update", table, self._ids, value)
        assign(self._c, self._op, handle, value)
