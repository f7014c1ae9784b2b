"""CerebrasEstimator with its run configuration, hooks and specs.

Importing it imports TensorFlow. It exports nothing: `cerebras_tf` has the public names.
"""
