"""Compile reports: what a CS-2 would do with a program, as one page that opens offline."""
