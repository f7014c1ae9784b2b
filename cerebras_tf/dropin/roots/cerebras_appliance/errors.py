"""Errors of a run."""

from __future__ import annotations


class ApplianceNanError(Exception):
    """The loss is NaN or infinite."""
