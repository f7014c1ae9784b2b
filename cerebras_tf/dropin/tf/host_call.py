"""Host call functions under their original import names; holds no code of its own."""

from __future__ import annotations

from cerebras_tf.estimator.host_call import host_call_to_eval_metric_ops, validate_host_call

__all__ = ["host_call_to_eval_metric_ops", "validate_host_call"]
