"""Runs programs: one loop, kernels chosen once. What ops mean is not known here."""
