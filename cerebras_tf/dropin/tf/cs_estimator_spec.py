"""`CSEstimatorSpec` under its original import name; holds no code of its own."""

from __future__ import annotations

from cerebras_tf.estimator.spec import CSEstimatorSpec

__all__ = ["CSEstimatorSpec"]
