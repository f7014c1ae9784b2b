"""`CerebrasEstimator` under its original import name; holds no code of its own."""

from __future__ import annotations

from cerebras_tf.estimator.estimator import CerebrasEstimator

__all__ = ["CerebrasEstimator"]
