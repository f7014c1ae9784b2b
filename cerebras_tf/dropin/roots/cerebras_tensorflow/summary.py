"""Functions on tensors under the appliance's import names; holds no code of its own."""

from __future__ import annotations

from cerebras_tf.estimator.layer_tensors import boundary_cast, summarize_tensor, summary_layer

__all__ = ["boundary_cast", "summarize_tensor", "summary_layer"]
