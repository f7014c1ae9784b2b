"""Lowerings of TensorFlow's optimizer operations to the formulas of ops.

A sparse operation gathers its rows, updates them by the formula of the dense one and scatters them
back. Its row indices must be unique, as TensorFlow's optimizers make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cerebras_tf.capture.control import assign
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.ir import Value
from cerebras_tf.ops import optimizer
from cerebras_tf.ops.expression import Expression
from cerebras_tf.ops.optimizer import Updates

_FORMULAS: dict[str, Callable[..., Updates]] = {  # type: ignore[explicit-any]
    "ResourceApplyAdaMax": optimizer.ada_max,
    "ResourceApplyAdadelta": optimizer.adadelta,
    "ResourceApplyAdagrad": optimizer.adagrad,
    "ResourceApplyAdagradDA": optimizer.adagrad_da,
    "ResourceApplyAdagradV2": optimizer.adagrad,
    "ResourceApplyAdam": optimizer.adam,
    "ResourceApplyAdamWithAmsgrad": optimizer.adam,
    "ResourceApplyAddSign": optimizer.add_sign,
    "ResourceApplyCenteredRMSProp": optimizer.rms_prop,
    "ResourceApplyFtrl": optimizer.ftrl,
    "ResourceApplyFtrlV2": optimizer.ftrl,
    "ResourceApplyGradientDescent": optimizer.gradient_descent,
    "ResourceApplyKerasMomentum": optimizer.keras_momentum,
    "ResourceApplyMomentum": optimizer.momentum,
    "ResourceApplyPowerSign": optimizer.power_sign,
    "ResourceApplyProximalAdagrad": optimizer.proximal_adagrad,
    "ResourceApplyProximalGradientDescent": optimizer.proximal_gradient_descent,
    "ResourceApplyRMSProp": optimizer.rms_prop,
    "ResourceSparseApplyAdadelta": optimizer.adadelta,
    "ResourceSparseApplyAdagrad": optimizer.adagrad,
    "ResourceSparseApplyAdagradDA": optimizer.adagrad_da,
    "ResourceSparseApplyAdagradV2": optimizer.adagrad,
    "ResourceSparseApplyCenteredRMSProp": optimizer.rms_prop,
    "ResourceSparseApplyFtrl": optimizer.ftrl,
    "ResourceSparseApplyFtrlV2": optimizer.ftrl,
    "ResourceSparseApplyKerasMomentum": optimizer.keras_momentum,
    "ResourceSparseApplyMomentum": optimizer.momentum,
    "ResourceSparseApplyProximalAdagrad": optimizer.proximal_adagrad,
    "ResourceSparseApplyProximalGradientDescent": optimizer.proximal_gradient_descent,
    "ResourceSparseApplyRMSProp": optimizer.rms_prop,
}
_MOMENTS = {
    "AdaMax": ("m", "v"),
    "Adadelta": ("accum", "accum_update"),
    "Adam": ("m", "v"),
    "AdamWithAmsgrad": ("m", "v"),
    "AddSign": ("m",),
    "CenteredRMSProp": ("mom",),  # ms less the square of mg must not be negative
    "KerasMomentum": ("accum",),
    "Momentum": ("accum",),
    "PowerSign": ("m",),
    "RMSProp": ("ms", "mom"),
}
# Operands that are moving averages of functions of gradients, by type of operation.
MOMENTS = {
    kind + name: moved
    for name, moved in _MOMENTS.items()
    for kind in ("ResourceApply", "ResourceSparseApply")
    if kind + name in _FORMULAS
}
# Gradient descent, plain and proximal, has other names for these operands.
_DESCENT_NAMES = {"alpha": "lr", "delta": "grad"}
# Attributes that do not affect the numbers.
_IGNORED_ATTRIBUTES = ("T", "Tindices", "use_locking")


class OptimizerState:
    """Operands of one operation, by name, and its variables or their rows."""

    def __init__(self, low: Lowering, op: Operation) -> None:
        self._low, self._op = low, op
        names = [argument.name for argument in op.op_def.input_arg]
        if op.type.endswith("GradientDescent"):
            names = [_DESCENT_NAMES.get(name, name) for name in names]
        given = dict(zip(names, op.inputs))
        ids = given.pop("indices", None)
        self._ids = None if ids is None else low.value(ids)
        self._handles = {name: t for name, t in given.items() if t.dtype.name == "resource"}
        self._tensors = {name: t for name, t in given.items() if name not in self._handles}

    def read(self) -> dict[str, Expression]:
        """Current values of the variables or their rows, and all other operands."""
        b = self._low.b
        values = {name: self._low.state.read(handle) for name, handle in self._handles.items()}
        if self._ids is not None:
            for name, table in values.items():
                values[name] = b.op("gather", table, self._ids, axis=0, batch_dims=0)
        values.update((name, self._low.value(tensor)) for name, tensor in self._tensors.items())
        return {name: Expression(b, value) for name, value in values.items()}

    def write(self, name: str, value: Value) -> None:
        """Assigns a variable, or its rows."""
        handle = self._handles[name]
        if self._ids is not None:
            table = self._low.state.read(handle)
            value = self._low.b.op("rows_update", table, self._ids, value)
        assign(self._low, self._op, handle, value)


@lowers(*_FORMULAS)
def _apply(low: Lowering, op: Operation) -> Sequence[Value]:
    state = OptimizerState(low, op)
    names = [definition.name for definition in op.op_def.attr]
    attributes = {name: op.get_attr(name) for name in names if name not in _IGNORED_ATTRIBUTES}
    for name, new in _FORMULAS[op.type](**state.read(), **attributes).items():
        state.write(name, new.value)
    return []
