"""A run.py in the style of the original platform: TensorFlow 2.2, layers with a policy, a wafer."""

import argparse

import numpy as np
import tensorflow as tf
from keras_preprocessing.text import text_to_word_sequence
from tensorflow.keras.mixed_precision.experimental import Policy
from tensorflow.python.keras.layers import Flatten
from tensorflow.python.keras.mixed_precision.experimental.loss_scale_optimizer import (
    LossScaleOptimizer,
)

try:
    import tfwse  # noqa: F401

    from cerebras.tf.ws.cs_estimator_ws import CerebrasEstimator
except ImportError:
    from cerebras.tf.cs_estimator import CerebrasEstimator
from cerebras.tf.run_config import CSRunConfig

WORDS = text_to_word_sequence("Zero, one; two!")


class Block(tf.keras.layers.Layer):
    """A convolution or a dense layer with the dtypes of the block."""

    def __init__(self, make, *arguments, **kwargs):
        super().__init__(**kwargs)
        self.dtype_policy = self._dtype_policy
        self.variable_dtype = self._dtype_policy.variable_dtype
        self.compute_dtype = self._dtype_policy.compute_dtype
        self.layer = make(*arguments, dtype=self.dtype_policy, name=self.name)

    def call(self, inputs):
        """Applies the layer."""
        return self.layer(inputs)


def model_fn(features, labels, mode, params):
    """A classifier whose blocks share an initializer."""
    policy = Policy("float32", loss_scale=None)
    shared = tf.keras.initializers.TruncatedNormal(stddev=0.1)
    convolution = (4, 3, (1, 1), "same", None, (1, 1), "relu", True, shared)
    net = Block(tf.keras.layers.Conv2D, *convolution, dtype=policy)(features)
    net = Flatten(dtype=policy)(net)
    for _ in range(2):
        net = Block(tf.keras.layers.Dense, 16, "tanh", True, shared, dtype=policy)(net)
        net = tf.keras.layers.Dense(16, "tanh", True, shared, dtype=policy)(net)
    logits = Block(tf.keras.layers.Dense, len(WORDS), None, True, shared, dtype=policy)(net)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    optimizer = tf.compat.v1.train.AdamOptimizer(params["learning_rate"])
    assert not isinstance(optimizer, LossScaleOptimizer)
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    """Images with a bright third."""
    labels = np.arange(12, dtype=np.int32) % 3
    images = np.zeros((12, 6, 6, 1), np.float32)
    for image, label in zip(images, labels):
        image[2 * label : 2 * label + 2] = 1.0
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(4).repeat()


def main():
    """Trains on the wafer and on the host."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--model_dir", required=True)
    parser.add_argument("--cs_ip")
    args = parser.parse_args()
    for side in ("wafer", "host"):
        config = CSRunConfig(cs_ip=args.cs_ip, tf_random_seed=7, log_step_count_steps=1)
        estimator = CerebrasEstimator(
            model_fn, f"{args.model_dir}/{side}", config=config, params={"learning_rate": 0.01}
        )
        estimator.train(input_fn, max_steps=3, use_cs=side == "wafer")
        kernels = [estimator.get_variable_value(f"dense{number}/kernel") for number in ("", "_1")]
        print(f"{side}: distinct kernels: {not np.array_equal(*kernels)}")


if __name__ == "__main__":
    main()
