"""TensorFlow sessions: fetches, lean graphs, initial values, input threads, replacements."""
