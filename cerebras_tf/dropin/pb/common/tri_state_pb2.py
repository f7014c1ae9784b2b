"""A switch with a third state, in which the compiler chooses."""

from __future__ import annotations

from cerebras.pb.declare import declare_enum

TriState = declare_enum("TriState", {"TS_UNSPECIFIED": 0, "TS_ENABLED": 1, "TS_DISABLED": 2})
TS_UNSPECIFIED = TriState.TS_UNSPECIFIED
TS_ENABLED = TriState.TS_ENABLED
TS_DISABLED = TriState.TS_DISABLED
