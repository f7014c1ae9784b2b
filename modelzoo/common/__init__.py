"""What every model of the zoo shares: schema, runner, layers, optimizers. Holds no model."""
