"""`CerebrasEstimator` under its weight-streaming import name; the class is the same."""

from __future__ import annotations

from cerebras_tf.estimator.estimator import CerebrasEstimator

__all__ = ["CerebrasEstimator"]
