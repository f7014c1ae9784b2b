"""One model function's step on the wafer: capture, compilation, and its node in the graph."""
