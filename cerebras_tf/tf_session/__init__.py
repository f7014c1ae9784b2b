"""TensorFlow sessions: fetches, lean graphs, initial values and input threads."""
