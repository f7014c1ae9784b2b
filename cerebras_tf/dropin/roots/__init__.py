"""Packages of the original software that had top-level names of their own; not one itself.

Each folder here is installed under its own name.
"""
