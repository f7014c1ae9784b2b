"""What differs between TensorFlow 2.15 and 2.21: private names, and `tf.estimator` itself."""
