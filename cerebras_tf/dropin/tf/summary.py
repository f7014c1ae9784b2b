"""Switches for summaries of tensors on the wafer, under their original import names only."""

from __future__ import annotations

from cerebras_tf.estimator.layer_tensors import cs1_disable_summaries, cs1_enable_summaries

__all__ = ["cs1_disable_summaries", "cs1_enable_summaries"]
