"""What a model_fn returns: `tf.estimator.EstimatorSpec` with a host call.

host_call.py turns the host call into metrics.
"""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator.host_call import validate_host_call


class CSEstimatorSpec(tf.estimator.EstimatorSpec):
    """`EstimatorSpec` with one more attribute, `host_call`.

    Args:
      mode: a `tf.estimator.ModeKeys`.
      *args: the other fields of `EstimatorSpec` in its order; better given by name.
      host_call: `(function, [tensor, ...])`, an alternative to `eval_metric_ops`: the tensors are
        computed on the wafer and the function builds the metrics from them on the host. A metric
        called `loss` stands in for the mean of the batches' losses, in which a batch that is
        smaller than the others counts as much as they do.
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
                "CSEstimatorSpec: give host_call or eval_metric_ops, not both. Received: host_call "
                f"and eval_metric_ops with {', '.join(sorted(spec.eval_metric_ops))}. "
                "Move the metrics into the host_call function, or drop the host_call."
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
