"""Analysis of a run."""
