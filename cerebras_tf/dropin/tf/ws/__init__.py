"""Weight streaming names of the original software."""
