"""Configuration messages of the original software, as protocol buffers built when imported."""
