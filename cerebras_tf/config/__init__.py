"""The configuration: its schema, the options of a run, and addresses. No TensorFlow."""
