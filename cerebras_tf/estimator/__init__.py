"""CerebrasEstimator and what belongs to it: configuration, hooks, checkpoints, session wiring.

Importing it imports TensorFlow. It exports nothing: `cerebras_tf` has the public names.
"""

# Private API of TF 2.15: tf.estimator is deprecated as a whole, and says so a dozen times a run.
from tensorflow.python.util import deprecation

deprecation._PRINT_DEPRECATION_WARNINGS = False
