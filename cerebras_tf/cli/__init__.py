"""Command lines: parsing, errors and exit codes."""
