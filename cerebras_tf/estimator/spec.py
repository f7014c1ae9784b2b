"""What a model_fn returns: `tf.estimator.EstimatorSpec` with a host call, and its metrics.

A host call is `(function, arguments)` or `(function, arguments, outputs)`: the host calls
the function with the arguments, tensors computed on the wafer, and it returns metric pairs.
"""

from __future__ import annotations

import inspect
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.errors import ConfigError

LOSS = "loss"  # tf.estimator's name of the mean loss of all batches
HOST_CALL_LOSS = "loss of the host call"
_FORM = "host_call must be (function, [argument, ...]) or the same with a third list"


def validate_host_call(host_call: Any) -> Any:
    """Returns `host_call` if it is well formed, and `()` if it is None or empty.

    Raises:
      ConfigError: it is not a tuple or list of 2 or 3 items, the first is not callable, another
        is not a tuple or list, or the function does not take that many arguments.
    """
    if host_call is None or (isinstance(host_call, (tuple, list)) and not host_call):
        return ()
    if not isinstance(host_call, (tuple, list)) or len(host_call) not in (2, 3):
        raise ConfigError(
            f"CSEstimatorSpec: {_FORM}. Received: {host_call!r}. "
            "Return host_call=(metric_fn, [labels, predictions]) from model_fn."
        )
    function = host_call[0]
    if not callable(function):
        raise ConfigError(
            f"CSEstimatorSpec: {_FORM}. Received: {function!r} as function, which is not callable. "
            "Pass the function that builds the metrics."
        )
    for position, item in enumerate(host_call[1:], start=2):
        if not isinstance(item, (tuple, list)):
            raise ConfigError(
                f"CSEstimatorSpec: {_FORM}. Received: {type(item).__name__} as item {position}. "
                "Wrap it in a list."
            )
    _check_argument_count(function, host_call[1])
    return host_call


def _check_argument_count(function: Any, arguments: Any) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(
            "CSEstimatorSpec: the host_call function must accept the listed arguments. Received: "
            f"{name}{signature} with {len(arguments)} arguments ({error}). List one tensor for "
            "each parameter."
        ) from error


def host_call_to_eval_metric_ops(host_call: Any) -> dict[str, Any]:
    """Calls the host call's function and returns its metrics as `eval_metric_ops`.

    Args:
      host_call: `(function, arguments[, outputs])`. The function returns a dict, whose names are
        kept, or a tuple or list, whose items are named `elem_0`, `elem_1`, ...

    Returns:
      name to `(value tensor, update op)`; other items are dropped.

    Raises:
      ConfigError: the host call is malformed or the function returns something else.
    """
    host_call = validate_host_call(host_call)
    if not host_call:
        return {}
    metrics = host_call[0](*host_call[1])
    if isinstance(metrics, (tuple, list)):
        metrics = {f"elem_{index}": item for index, item in enumerate(metrics)}
    if not isinstance(metrics, dict):
        raise ConfigError(
            "CSEstimatorSpec: the host_call function must return a dict, tuple or list of "
            f"(value, update_op) pairs. Received: {type(metrics).__name__}. "
            "Return for example {'accuracy': tf.compat.v1.metrics.accuracy(labels, predictions)}."
        )
    return {name: tuple(item) for name, item in metrics.items() if _is_metric_pair(item)}


def _is_metric_pair(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2 and tf.is_tensor(item[0])


def with_host_call(spec: Any, mode: str) -> Any:
    """In evaluation, replaces the host call of a spec by its metrics."""
    host_call = getattr(spec, "host_call", None)
    if host_call is None or mode != tf.estimator.ModeKeys.EVAL:
        return spec
    metrics = host_call_to_eval_metric_ops(host_call)
    if LOSS in metrics:  # tf.estimator refuses the name
        metrics[HOST_CALL_LOSS] = metrics.pop(LOSS)
    return spec._replace(host_call=None, eval_metric_ops=metrics)


class CSEstimatorSpec(tf.estimator.EstimatorSpec):
    """`EstimatorSpec` with one more attribute, `host_call`.

    Args:
      mode: a `tf.estimator.ModeKeys`.
      *args: the other fields of `EstimatorSpec` in its order; better given by name.
      host_call: `(function, [tensor, ...])`, an alternative to `eval_metric_ops`: the tensors are
        computed on the wafer and the function builds the metrics from them on the host. A metric
        named `loss` replaces the mean of the batches' losses, which gives a smaller batch the same
        weight.
      **kwargs: the fields of `EstimatorSpec` by name.

    Raises:
      ConfigError: the host call is malformed, or both it and `eval_metric_ops` are given.
    """

    host_call: Any

    def __new__(
        cls, mode: str, *args: Any, host_call: Optional[Any] = None, **kwargs: Any
    ) -> CSEstimatorSpec:
        spec = super().__new__(cls, mode, *args, **kwargs)
        spec.host_call = validate_host_call(host_call) or None
        if spec.host_call is not None and spec.eval_metric_ops:
            raise ConfigError(
                "CSEstimatorSpec: only one of host_call and eval_metric_ops must be set. "
                "Received: host_call and eval_metric_ops with "
                f"{', '.join(sorted(spec.eval_metric_ops))}. Move the metrics into the host_call "
                "function, or remove host_call."
            )
        return spec

    def _replace(self, **kwargs: Any) -> CSEstimatorSpec:
        """Returns a copy with some fields changed; TensorFlow's own drops the subclass."""
        host_call = kwargs.pop("host_call", self.host_call)
        if kwargs.get("mode", self.mode) != self.mode:
            raise ConfigError(
                "CSEstimatorSpec: the mode of a spec cannot be changed. "
                f"Received: {kwargs['mode']!r} for {self.mode!r}. Build a new spec."
            )
        fields = {**self._asdict(), **kwargs}
        return type(self)(fields.pop("mode"), host_call=host_call, **fields)
