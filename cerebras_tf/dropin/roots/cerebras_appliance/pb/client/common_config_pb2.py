"""The appliance's messages under their first import name; holds no code of its own."""

from __future__ import annotations

from ..workflow.appliance.common.common_config_pb2 import (
    ES_PIPELINE,
    ES_WEIGHT_STREAMING,
    DebugArgs,
    ExecutionStrategy,
)

__all__ = ["ES_PIPELINE", "ES_WEIGHT_STREAMING", "DebugArgs", "ExecutionStrategy"]
