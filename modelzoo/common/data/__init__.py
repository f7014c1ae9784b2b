"""Input pipelines shared by models."""
