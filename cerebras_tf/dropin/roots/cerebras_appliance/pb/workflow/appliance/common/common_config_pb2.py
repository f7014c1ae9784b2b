"""Messages of the appliance: debug settings and execution strategy. They have no effect."""

from __future__ import annotations

from cerebras.pb.declare import Enum, MapTo, Message, declare_enum, declare_message

ExecutionStrategy = declare_enum(
    "ExecutionStrategy", {"ES_UNSPECIFIED": 0, "ES_PIPELINE": 1, "ES_WEIGHT_STREAMING": 2}
)
ES_UNSPECIFIED = ExecutionStrategy.ES_UNSPECIFIED
ES_PIPELINE = ExecutionStrategy.ES_PIPELINE
ES_WEIGHT_STREAMING = ExecutionStrategy.ES_WEIGHT_STREAMING

_MANAGER = Message(
    "DebugMGR",
    {
        "clean_pod_policy": Enum("CleanPodPolicy", {"UNSPECIFIED": 0, "NONE": 1}),
        "task_spec_hints": MapTo(Message("TaskSpecHint", {"container_image": "string"})),
        "scheduler_hints": MapTo("string"),
        "labels": MapTo("string"),
    },
)
_RESOURCES = ("activation", "command", "compile_coord", "execute_coord", "weight", "worker")
DebugArgs = declare_message(
    "DebugArgs",
    {
        "debug_usr": {f"{name}_resource": {"memory_bytes": "int64"} for name in _RESOURCES},
        "debug_ini": {"frozen_content": "string"},
        "debug_mgr": _MANAGER,
        "debug_crd": {"pipeline_options": {"full_config": "string"}},
    },
)
