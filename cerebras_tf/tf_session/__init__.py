"""TensorFlow sessions that hold little: structures, lean graphs, initial values, input threads."""
