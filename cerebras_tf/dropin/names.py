"""The import names of objects that are defined elsewhere: one table, from which modules are made.

A module of the table has no file. It is made when it is imported, and only then imports the modules
that define its names, so `cerebras.pb` needs no TensorFlow. Every package with such modules calls
`serve_names()`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_CHECKPOINT_READER = {"CheckpointReader": "cerebras_tf.checkpoints.reader"}
_ESTIMATOR = {"CerebrasEstimator": "cerebras_tf.estimator.estimator"}
_RUN_CONFIG = {"CSRunConfig": "cerebras_tf.estimator.run_config"}
_SPEC = {"CSEstimatorSpec": "cerebras_tf.estimator.spec"}
_HOST_CALL = dict.fromkeys(
    ("host_call_to_eval_metric_ops", "validate_host_call"), "cerebras_tf.estimator.spec"
)
_TENSORS = dict.fromkeys(
    ("boundary_cast", "summarize_tensor", "summary_layer"), "cerebras_tf.estimator.layer_tensors"
)
_SPARSIFIERS = dict.fromkeys(
    (
        "SPARSIFIER_MAP",
        "BalancedTopKSparsifier",
        "BaseSparsifier",
        "CheckerboardSparsifier",
        "ConstantMaskSparsifier",
        "TopKSparsifier",
        "get_AdamW_aware_sparsifier_class",
    ),
    "cerebras_tf.memoryx.sparsifier",
)
_SWITCHES = dict.fromkeys(
    ("cs1_disable_summaries", "cs1_enable_summaries"), "cerebras_tf.estimator.layer_tensors"
)
_APPLIANCE_PB = "cerebras_appliance.pb.workflow.appliance.common.common_config_pb2"
# For each module: its names, and the module that defines them, or "module:name" for another name.
MODULES: dict[str, dict[str, str]] = {
    "cerebras.tf.cs_estimator": _ESTIMATOR,
    "cerebras.tf.cs_estimator_spec": _SPEC,
    "cerebras.tf.host_call": _HOST_CALL,
    "cerebras.tf.run_config": _RUN_CONFIG,
    "cerebras.tf.summary": _SWITCHES,
    "cerebras.tf.tf_helper": {
        **_TENSORS,
        "GetWeights": "cerebras_tf.checkpoints.reader:CheckpointReader",
    },
    "cerebras.tf.ws.cs_estimator_ws": _ESTIMATOR,
    "cerebras.tf.ws.ws_sparsify": _SPARSIFIERS,
    "cerebras_appliance.cs_run_config": _RUN_CONFIG,
    "cerebras_appliance.pb.client.common_config_pb2": dict.fromkeys(
        ("ES_PIPELINE", "ES_WEIGHT_STREAMING", "DebugArgs", "ExecutionStrategy"), _APPLIANCE_PB
    ),
    "cerebras_appliance.pb.common.cerebras_type_pb2": dict.fromkeys(
        ("T_CB16", "T_F16", "CerebrasType"), "cerebras.pb.common.cerebras_type_pb2"
    ),
    "cerebras_appliance.pb.common.tri_state_pb2": dict.fromkeys(
        ("TS_DISABLED", "TS_ENABLED", "TriState"), "cerebras.pb.common.tri_state_pb2"
    ),
    "cerebras_appliance.pb.stack.autogen_pb2": dict.fromkeys(
        ("AP_DISABLED", "AP_ENABLED", "AutogenPolicy"), "cerebras.pb.stack.autogen_pb2"
    ),
    "cerebras_pytorch.pb.stack.autogen_pb2": dict.fromkeys(
        ("AP_DISABLED", "AP_ENABLED", "AutogenPolicy"), "cerebras.pb.stack.autogen_pb2"
    ),
    "cerebras_pytorch.utils.utils": {"is_ltc_mlir_mode_enabled": "cerebras_pytorch.platform"},
    "cerebras_appliance.pb.stack.full_pb2": {"FullConfig": "cerebras.pb.stack.full_pb2"},
    "cerebras_tensorflow.cs_estimator_spec": _SPEC,
    "cerebras_tensorflow.graph_extraction": _SWITCHES,
    "cerebras_tensorflow.saver.checkpoint_reader": _CHECKPOINT_READER,
    "cerebras_tensorflow.summary": _TENSORS,
}
# Modules that are others, with their submodules: names of releases from 1.9.
_ALIASES = {
    "cerebras.appliance": "cerebras_appliance",
    "cerebras_pytorch.core.modes": "cerebras.pytorch.core.modes",
    "cerebras_pytorch.distributed": "cerebras.pytorch.distributed",
    "cerebras_pytorch.experimental": "cerebras.pytorch",
    "cerebras_pytorch.metrics": "cerebras.pytorch.metrics",
    "cerebras_pytorch.nn": "cerebras.pytorch.nn",
    "cerebras_pytorch.utils.nest": "cerebras.pytorch.utils.nest",
    "cerebras_pytorch.utils.tensorboard": "cerebras.pytorch.utils.tensorboard",
}
# Packages without other modules.
_PACKAGES = {
    "cerebras_appliance.pb.client",
    "cerebras_appliance.pb.common",
    "cerebras_appliance.pb.stack",
    "cerebras_pytorch.pb",
    "cerebras_pytorch.pb.stack",
    "cerebras_tensorflow.saver",
}


class _Names(MetaPathFinder, Loader):
    """Imports the modules of the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the specification of a module of the table, else None."""
        if fullname in MODULES or fullname in _PACKAGES:
            return ModuleSpec(fullname, self, is_package=fullname in _PACKAGES)
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Sets the names of a module."""
        names = MODULES.get(module.__name__, {})
        for name, place in names.items():
            setattr(module, name, _look_up(name, place))
        vars(module).update(__all__=sorted(names), __doc__="Import names of the original software.")


class _Aliases(MetaPathFinder, Loader):
    """Imports the modules of _ALIASES: they are the same objects as those they stand for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the specification of an alias, or of a submodule of one, else None."""
        name = _aliased(fullname)
        return None if name is None or find_spec(name) is None else ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Replaces the new module by the one that it stands for."""
        sys.modules[module.__name__] = importlib.import_module(str(_aliased(module.__name__)))


def _aliased(fullname: str) -> str | None:
    for alias, name in _ALIASES.items():
        if fullname == alias or fullname.startswith(f"{alias}."):
            return name + fullname.removeprefix(alias)
    return None


def _look_up(name: str, place: str) -> Any:
    module, _, own_name = place.partition(":")
    return getattr(importlib.import_module(module), own_name or name)


_NAMES, _FIRST = _Names(), _Aliases()


def serve_names() -> None:
    """Makes the modules of the tables importable. Files named as those of MODULES come first."""
    if _NAMES not in sys.meta_path:
        sys.meta_path.append(_NAMES)
        sys.meta_path.insert(0, _FIRST)
