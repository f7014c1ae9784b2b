"""Weight-streaming names of the original software; re-exports and the sparsity interface."""
