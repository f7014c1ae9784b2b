"""The Transformer of Vaswani et al. (2017): an encoder-decoder. Holds no shared blocks."""
