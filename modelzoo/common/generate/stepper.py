"""Calls an estimator's prediction one batch at a time, each made from what came before.

What the model computes is not its business. Host and wafer go the same way, and there is one
session for all calls: a model is loaded once, and shapes may change from call to call.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from modelzoo.common.data.functions import untuned
from modelzoo.common.train.estimator import CheckpointHook


class Stepper:
    """A model in predict mode, called like a function.

    Args:
        estimator: CerebrasEstimator of the model.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.
        signature: ``tf.TensorSpec`` of each feature by its name; None for sizes that may change.
        tells, used: whether weights of the checkpoint that are not used are told; see
            CheckpointHook.
    """

    def __init__(self, estimator, checkpoint_path, use_cs, signature, tells=True, used=None):
        self._signature = signature
        self._features = None
        self._results = estimator.predict(
            self._input_fn,
            hooks=[CheckpointHook(checkpoint_path, tells, used)],
            checkpoint_path=checkpoint_path,
            yield_single_examples=False,
            use_cs=use_cs,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __call__(self, **features):
        """Runs the model on one batch.

        Args:
            **features: an array for every name of the signature.

        Returns:
            The predictions, arrays by name.
        """
        self._features = features
        return next(self._results)

    def close(self):
        """Ends the session."""
        self._results.close()

    def _input_fn(self):
        dataset = tf.data.Dataset.from_generator(self._batches, output_signature=self._signature)
        options = tf.data.Options()
        # What is read ahead would be the features of the call before.
        options.experimental_optimization.inject_prefetch = False
        return untuned(dataset.with_options(options))

    def _batches(self):
        while True:
            yield self._features
