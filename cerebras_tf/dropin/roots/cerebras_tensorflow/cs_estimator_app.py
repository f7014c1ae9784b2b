"""The estimator under the appliance's name, which runs on the wafer unless told otherwise."""

from __future__ import annotations

from cerebras_tf.estimator.estimator import CerebrasEstimator


class CerebrasAppEstimator(CerebrasEstimator):
    """`CerebrasEstimator` by another name; arguments and methods are the same."""
