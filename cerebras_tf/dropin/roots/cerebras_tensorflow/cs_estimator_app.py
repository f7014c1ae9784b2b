"""The estimator under the appliance's name."""

from __future__ import annotations

from cerebras_tf.estimator.estimator import CerebrasEstimator


class CerebrasAppEstimator(CerebrasEstimator):
    """`CerebrasEstimator` under another name."""
