"""Compile reports: what a machine would do with a program, as one page that opens offline."""
