"""The appliance's import names for the configuration of a run."""

from __future__ import annotations

from cerebras.names import serve_names

serve_names()
