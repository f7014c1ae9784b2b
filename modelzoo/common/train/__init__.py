"""The runner of all models, and what a model_fn returns."""
