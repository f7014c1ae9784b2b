"""Input pipelines shared by models. Knows nothing of what a model does with the records."""
