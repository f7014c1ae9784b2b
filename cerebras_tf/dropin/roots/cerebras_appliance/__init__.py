"""The appliance's import names for the configuration of a run."""

from __future__ import annotations

from cerebras.names import serve_names

DEFAULT_COMPILE_DIR: None = None  # no folder of compiled programs
serve_names()
