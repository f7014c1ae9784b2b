"""The step of a TensorFlow model on the wafer, and its node in the session's graph."""
