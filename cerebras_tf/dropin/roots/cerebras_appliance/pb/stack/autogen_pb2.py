"""Kernel generation policy under the appliance's import name; holds no code of its own."""

from __future__ import annotations

from cerebras.pb.stack.autogen_pb2 import AP_ENABLED, AutogenPolicy

__all__ = ["AP_ENABLED", "AutogenPolicy"]
