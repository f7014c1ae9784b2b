"""Reads and writes users' files: lines, JSON, compressed text; names what is wrong with a path."""
