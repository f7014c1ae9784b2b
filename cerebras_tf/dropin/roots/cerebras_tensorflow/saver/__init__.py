"""Finding and reading checkpoints under the appliance's import names."""
