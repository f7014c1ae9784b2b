"""Scaling laws: loss by training compute, fitted to runs, and what a budget buys."""
