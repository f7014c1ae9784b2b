"""`CheckpointReader` under the appliance's import name; holds no code of its own."""

from __future__ import annotations

from cerebras_tf.estimator.checkpoint_reader import CheckpointReader

__all__ = ["CheckpointReader"]
