"""The YAML: its schema, the sections that all models share, and loading it. No TensorFlow."""
