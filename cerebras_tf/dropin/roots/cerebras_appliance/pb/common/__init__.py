"""Configuration messages under the appliance's import names."""
