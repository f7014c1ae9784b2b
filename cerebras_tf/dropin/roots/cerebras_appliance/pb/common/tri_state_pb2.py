"""Switches under the appliance's import name; holds no code of its own."""

from __future__ import annotations

from cerebras.pb.common.tri_state_pb2 import TS_DISABLED, TS_ENABLED, TriState

__all__ = ["TS_DISABLED", "TS_ENABLED", "TriState"]
