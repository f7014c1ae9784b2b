"""Command lines: arguments, mistakes in them, exit codes. Commands are in modelzoo/commands."""
