"""The appliance's import names for configuring a run; starts no appliance."""
