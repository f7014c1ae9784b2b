"""Compiler settings under the appliance's import name; holds no code of its own."""

from __future__ import annotations

from cerebras.pb.stack.full_pb2 import FullConfig

__all__ = ["FullConfig"]
