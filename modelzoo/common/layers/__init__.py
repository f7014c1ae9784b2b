"""Building blocks of the models: plain functions over tensors. Holds no whole model."""
