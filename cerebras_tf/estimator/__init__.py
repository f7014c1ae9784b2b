"""CerebrasEstimator and what belongs to it: run configuration, hooks, specs.

Importing it imports TensorFlow. It exports nothing: `cerebras_tf` has the public names.
"""
