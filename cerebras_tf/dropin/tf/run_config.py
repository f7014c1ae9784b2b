"""`CSRunConfig` under its original import name; holds no code of its own."""

from __future__ import annotations

from cerebras_tf.estimator.run_config import CSRunConfig

__all__ = ["CSRunConfig"]
