"""TensorFlow's checkpoint format (the "bundle"): index, data files, links. Needs no TensorFlow."""
