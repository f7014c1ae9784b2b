"""What a run prints and writes to TensorBoard: progress, traffic, profiles."""
