"""Text from a language model: decoding with a cache, sampling, writing. Trains nothing."""
