"""`FullConfig`, the compiler settings that models pass in `stack_params["config"]`.

It has the fields that published models set. They tune another compiler and have no effect.
"""

from __future__ import annotations

from cerebras.pb.common.cerebras_type_pb2 import CerebrasType
from cerebras.pb.common.tri_state_pb2 import TriState
from cerebras.pb.declare import Repeated, declare_message
from cerebras.pb.stack.autogen_pb2 import AutogenPolicy

_KERNEL = {
    "inc_pwt_estimate": "bool",
    "enable_pipelined_mlm_loss": "bool",
    "use_legacy_vsl": "bool",
    "no_dcache_spill_splits": "bool",
    "numerics": {"layernorm_compute_dtype": CerebrasType},
    "autogen_config": {
        "always_store_inputs": TriState,
        "enable_task_based_estimator": TriState,
        "try_strip_outer_dim": TriState,
    },
}
_MATCHING = {
    "autogen_policy": AutogenPolicy,
    "kernel": _KERNEL,
    "add_pack_and_unpack": {"max_egress_per_pack": "int32"},
    "match_lair": {"disabled_converters": Repeated("string")},
    "remove_meta_kernels": {"remove_reshape_meta": "bool"},
    "optimize_graph": {"placement_prediction": {"max_fill_rate": "double"}},
}
_PLACEMENT = {
    "optimize_buses": {"deltat_relative_margin": "double"},
    "pathfinder": {"deltat_relative_margin": "double"},
    "place": {"custom_split_filter": "string"},
    "prep_recolor_kernels": {"wrap_pack_kernel": "bool"},
    "pathfinder_inter_replica": {"fix_existing": "bool", "allow_infeasible_initial_state": "bool"},
}
# target_num_replicas: -1 lets the compiler choose the number of replicas.
FullConfig = declare_message(
    "FullConfig", {"target_num_replicas": "int32", "matching": _MATCHING, "placement": _PLACEMENT}
)
