"""Every import name of the original software exists and is the object of the table."""

from __future__ import annotations

import importlib
import sys

import pytest

pytest.importorskip("tensorflow")

from cerebras.names import MODULES

pytestmark = pytest.mark.tf

NAMES = {
    "cerebras.tf.ws.cs_estimator_ws": ["CerebrasEstimator"],
    "cerebras.tf.cs_estimator": ["CerebrasEstimator"],
    "cerebras.tf.run_config": ["CSRunConfig"],
    "cerebras.tf.cs_estimator_spec": ["CSEstimatorSpec"],
    "cerebras.tf.host_call": ["host_call_to_eval_metric_ops", "validate_host_call"],
    "cerebras.tf.summary": ["cs1_enable_summaries", "cs1_disable_summaries"],
    "cerebras.tf.tf_helper": ["boundary_cast", "summary_layer", "summarize_tensor", "GetWeights"],
    "cerebras.tf.ws.ws_sparsify": ["SPARSIFIER_MAP", "get_AdamW_aware_sparsifier_class"],
    "cerebras.pb.tf.csconfig_pb2": ["CSConfig"],
    "cerebras.pb.stack.full_pb2": ["FullConfig"],
    "cerebras.pb.stack.autogen_pb2": ["AP_ENABLED"],
    "cerebras.pb.common.tri_state_pb2": ["TS_ENABLED", "TS_DISABLED"],
    "cerebras.pb.common.cerebras_type_pb2": ["T_F16", "T_CB16"],
    "cerebras_tensorflow.cs_estimator_app": ["CerebrasAppEstimator"],
    "cerebras_tensorflow.summary": ["boundary_cast", "summarize_tensor", "summary_layer"],
    "cerebras_tensorflow.cs_estimator_spec": ["CSEstimatorSpec"],
    "cerebras_tensorflow.graph_extraction": ["cs1_enable_summaries", "cs1_disable_summaries"],
    "cerebras_tensorflow.saver.checkpoint_reader": ["CheckpointReader"],
    "cerebras_appliance.cs_run_config": ["CSRunConfig"],
    "cerebras_appliance.CSConfig": ["CSConfig"],
    "cerebras_appliance.cluster_client": ["VolumeMount"],
    "cerebras_appliance.run_utils": ["get_debug_args"],
    "cerebras_appliance.pb.workflow.appliance.common.common_config_pb2": [
        "DebugArgs",
        "ExecutionStrategy",
    ],
    "cerebras_appliance.pb.client.common_config_pb2": ["DebugArgs"],
    "cerebras_appliance.pb.stack.full_pb2": ["FullConfig"],
    "cerebras_appliance.pb.stack.autogen_pb2": ["AP_ENABLED"],
    "cerebras_appliance.pb.common.tri_state_pb2": ["TS_ENABLED", "TS_DISABLED"],
    "cerebras_appliance.pb.common.cerebras_type_pb2": ["T_F16", "T_CB16"],
}
CLASSES_KNOWN_BY_NAME = ["CerebrasEstimator", "CerebrasAppEstimator", "CSRunConfig"]


@pytest.mark.parametrize("module_name", NAMES)
def test_every_name_of_the_original_can_be_imported(module_name):
    module = importlib.import_module(module_name)
    for name in NAMES[module_name]:
        found = getattr(module, name)
        if name in [*CLASSES_KNOWN_BY_NAME, "CSEstimatorSpec"]:
            assert found.__name__ == name


def test_appliance_names_are_the_same_objects():
    def get(module_name, name):
        return getattr(importlib.import_module(module_name), name)

    for appliance, original, name in (
        ("cerebras_appliance.cs_run_config", "cerebras.tf.run_config", "CSRunConfig"),
        ("cerebras_appliance.pb.stack.full_pb2", "cerebras.pb.stack.full_pb2", "FullConfig"),
        ("cerebras_tensorflow.summary", "cerebras.tf.tf_helper", "summary_layer"),
        ("cerebras.tf.ws.cs_estimator_ws", "cerebras.tf.cs_estimator", "CerebrasEstimator"),
    ):
        assert get(appliance, name) is get(original, name)


def test_app_estimator_is_a_cerebras_estimator():
    app = importlib.import_module("cerebras_tensorflow.cs_estimator_app")
    original = importlib.import_module("cerebras.tf.cs_estimator")
    assert issubclass(app.CerebrasAppEstimator, original.CerebrasEstimator)


@pytest.mark.parametrize("mode,importable", [("weight_streaming", True), ("pipeline", False)])
def test_tfwse_can_be_imported_in_weight_streaming_only(monkeypatch, mode, importable):
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
    monkeypatch.delitem(sys.modules, "tfwse", raising=False)
    if importable:
        importlib.import_module("tfwse")
    else:
        with pytest.raises(ImportError, match="weight streaming"):
            importlib.import_module("tfwse")


def test_packages_that_switch_to_another_code_path_are_absent():
    assert importlib.util.find_spec("cerebras.framework") is None


@pytest.mark.parametrize("module_name", MODULES)
def test_every_module_of_the_table_has_its_names_and_no_others(module_name):
    if module_name.startswith("cerebras_pytorch"):
        pytest.importorskip("torch", reason="torch is an extra")
    module = importlib.import_module(module_name)
    assert sorted(module.__all__) == sorted(MODULES[module_name])
    for name, place in MODULES[module_name].items():
        defined_in, _, own_name = place.partition(":")
        expected = getattr(importlib.import_module(defined_in), own_name or name)
        assert getattr(module, name) is expected


def test_other_names_cannot_be_imported():
    with pytest.raises(ModuleNotFoundError, match="cerebras.tf.nothing"):
        importlib.import_module("cerebras.tf.nothing")
    with pytest.raises(ImportError, match="CSRunConfig"):
        exec("from cerebras.tf.cs_estimator import CSRunConfig")
