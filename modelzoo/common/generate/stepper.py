"""Calls an estimator's predict mode like a function, one batch at a time, in one session."""

import tensorflow.compat.v1 as tf

from modelzoo.common.data.functions import without_autotune
from modelzoo.common.train.estimator import CheckpointHook


class Stepper:
    """A model in predict mode, called like a function. It is loaded once.

    Args:
        signature: ``tf.TensorSpec`` of each feature by name. Sizes of None may differ between
            calls.
        warn_unused, used: whether unused weights of the checkpoint are logged; see CheckpointHook.
    """

    def __init__(self, estimator, checkpoint_path, use_cs, signature, warn_unused=True, used=None):
        self._signature = signature
        self._features = None
        self._results = estimator.predict(
            self._input_fn,
            hooks=[CheckpointHook(checkpoint_path, warn_unused, used)],
            checkpoint_path=checkpoint_path,
            yield_single_examples=False,
            use_cs=use_cs,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __call__(self, **features):
        """Runs the model on one batch; returns the predictions, arrays by name."""
        self._features = features
        return next(self._results)

    def close(self):
        """Ends the session."""
        self._results.close()

    def _input_fn(self):
        dataset = tf.data.Dataset.from_generator(self._batches, output_signature=self._signature)
        options = tf.data.Options()
        # Prefetching would read the features of the previous call.
        options.experimental_optimization.inject_prefetch = False
        return without_autotune(dataset.with_options(options))

    def _batches(self):
        while True:
            yield self._features
