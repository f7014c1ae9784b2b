"""The 16-bit number formats of kernels."""

from __future__ import annotations

from cerebras.pb.declare import declare_enum

CerebrasType = declare_enum("CerebrasType", {"T_UNSPECIFIED": 0, "T_F16": 1, "T_CB16": 2})
T_UNSPECIFIED = CerebrasType.T_UNSPECIFIED
T_F16 = CerebrasType.T_F16
T_CB16 = CerebrasType.T_CB16
