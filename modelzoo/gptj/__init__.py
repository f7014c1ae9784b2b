"""GPT-J and GPT-NeoX: decoders with parallel sublayers. Holds no blocks shared with others."""
