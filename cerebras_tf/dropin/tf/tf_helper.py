"""What layers call on their tensors, and `GetWeights`, under their original import names only."""

from __future__ import annotations

from cerebras_tf.estimator.checkpoint_reader import CheckpointReader as GetWeights
from cerebras_tf.estimator.layer_tensors import boundary_cast, summarize_tensor, summary_layer

__all__ = ["GetWeights", "boundary_cast", "summarize_tensor", "summary_layer"]
