"""Configuration messages under their original import names."""
