"""Number formats under the appliance's import name; holds no code of its own."""

from __future__ import annotations

from cerebras.pb.common.cerebras_type_pb2 import T_CB16, T_F16, CerebrasType

__all__ = ["T_CB16", "T_F16", "CerebrasType"]
