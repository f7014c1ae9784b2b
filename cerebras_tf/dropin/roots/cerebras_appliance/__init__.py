"""The appliance's import names for configuring a run; starts no appliance."""

from __future__ import annotations

from cerebras.names import serve_names

serve_names()
