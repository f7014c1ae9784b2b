"""TensorFlow's side of the original import names; re-exports, no logic of training."""
