"""Records the steps of an eager PyTorch loop, and runs them compiled."""
