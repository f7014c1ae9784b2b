"""The configuration: schema, options of a run, and addresses. It imports no TensorFlow."""
