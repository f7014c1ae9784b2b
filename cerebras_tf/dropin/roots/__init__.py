"""Packages of the original software with other top-level names; each is installed under its own."""
