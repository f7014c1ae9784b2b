"""Whether kernels may be generated where no existing kernel matches."""

from __future__ import annotations

from cerebras.pb.declare import declare_enum

AutogenPolicy = declare_enum(
    "AutogenPolicy", {"AP_UNSPECIFIED": 0, "AP_ENABLED": 1, "AP_DISABLED": 2}
)
AP_UNSPECIFIED = AutogenPolicy.AP_UNSPECIFIED
AP_ENABLED = AutogenPolicy.AP_ENABLED
AP_DISABLED = AutogenPolicy.AP_DISABLED
