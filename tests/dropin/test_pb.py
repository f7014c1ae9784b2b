"""Configuration messages behave as protocol buffers and have the known fields."""

from __future__ import annotations

import copy

import pytest
from cerebras_appliance.pb.workflow.appliance.common.common_config_pb2 import (
    DebugArgs,
    ExecutionStrategy,
)
from google.protobuf import json_format, text_format

from cerebras.pb.common.cerebras_type_pb2 import T_CB16, T_F16
from cerebras.pb.common.tri_state_pb2 import TS_DISABLED, TS_ENABLED
from cerebras.pb.declare import Repeated, declare_enum, declare_message
from cerebras.pb.stack.autogen_pb2 import AP_ENABLED
from cerebras.pb.stack.full_pb2 import FullConfig
from cerebras.pb.tf.csconfig_pb2 import CSConfig

# Path of a field to a value that published models give it.
FULL_CONFIG_FIELDS = {
    "target_num_replicas": -1,
    "matching.autogen_policy": AP_ENABLED,
    "matching.kernel.inc_pwt_estimate": True,
    "matching.kernel.enable_pipelined_mlm_loss": True,
    "matching.kernel.use_legacy_vsl": True,
    "matching.kernel.no_dcache_spill_splits": True,
    "matching.kernel.numerics.layernorm_compute_dtype": T_CB16,
    "matching.kernel.autogen_config.always_store_inputs": TS_ENABLED,
    "matching.kernel.autogen_config.enable_task_based_estimator": TS_DISABLED,
    "matching.kernel.autogen_config.try_strip_outer_dim": TS_ENABLED,
    "matching.add_pack_and_unpack.max_egress_per_pack": 1,
    "matching.remove_meta_kernels.remove_reshape_meta": True,
    "matching.optimize_graph.placement_prediction.max_fill_rate": -1,
    "placement.optimize_buses.deltat_relative_margin": 0.25,
    "placement.pathfinder.deltat_relative_margin": 0.5,
    "placement.prep_recolor_kernels.wrap_pack_kernel": True,
    "placement.pathfinder_inter_replica.fix_existing": True,
    "placement.pathfinder_inter_replica.allow_infeasible_initial_state": True,
}


def split(path):
    *outer, name = path.split(".")
    return outer, name


def reach(message, names):
    for name in names:
        message = getattr(message, name)
    return message


def fill_full_config():
    config = FullConfig()
    for path, value in FULL_CONFIG_FIELDS.items():
        outer, name = split(path)
        setattr(reach(config, outer), name, value)
    config.matching.match_lair.disabled_converters.extend(["A", "B"])
    return config


def test_every_known_field_of_full_config_can_be_set_and_read():
    config = fill_full_config()
    for path, value in FULL_CONFIG_FIELDS.items():
        outer, name = split(path)
        assert getattr(reach(config, outer), name) == value
    assert list(config.matching.match_lair.disabled_converters) == ["A", "B"]


def test_nested_messages_appear_when_assigned_to():
    config = FullConfig()
    assert not config.HasField("matching")
    config.matching.kernel.use_legacy_vsl = True
    assert config.HasField("matching")
    assert config.matching.HasField("kernel")
    assert not config.HasField("placement")


@pytest.mark.parametrize("round_trip", ["binary", "text", "json", "deepcopy"])
def test_messages_are_preserved_by_every_format(round_trip):
    config = fill_full_config()
    twin = FullConfig()
    if round_trip == "binary":
        twin.ParseFromString(config.SerializeToString())
    elif round_trip == "text":
        text_format.Parse(text_format.MessageToString(config), twin)
    elif round_trip == "json":
        json_format.Parse(json_format.MessageToJson(config), twin)
    else:
        twin = copy.deepcopy(config)
    assert twin == config
    twin.target_num_replicas = 2
    assert twin != config


def test_merge_from_keeps_fields_that_the_other_does_not_set():
    config, other = FullConfig(), FullConfig()
    config.target_num_replicas = 3
    config.matching.kernel.use_legacy_vsl = True
    other.matching.kernel.inc_pwt_estimate = True
    config.MergeFrom(other)
    assert config.target_num_replicas == 3
    assert config.matching.kernel.use_legacy_vsl
    assert config.matching.kernel.inc_pwt_estimate
    config.CopyFrom(other)
    assert config == other


def test_unknown_and_mistyped_fields_are_refused_by_name():
    with pytest.raises(AttributeError, match="use_legacy_vls"):
        FullConfig().matching.kernel.use_legacy_vls = True
    with pytest.raises(ValueError, match="use_cbfloat"):
        CSConfig(use_cbfloat=True)
    with pytest.raises(TypeError):
        FullConfig().target_num_replicas = "all"
    with pytest.raises(ValueError, match="99"):
        FullConfig().matching.autogen_policy = 99


def test_cs_config_is_built_from_the_yaml_section():
    assert CSConfig(use_cbfloat16=True).use_cbfloat16
    assert not CSConfig().use_cbfloat16


def test_enum_values_differ_and_know_their_names():
    assert len({TS_ENABLED, TS_DISABLED, 0}) == 3
    assert T_F16 != T_CB16
    assert ExecutionStrategy.Name(ExecutionStrategy.ES_PIPELINE) == "ES_PIPELINE"
    assert ExecutionStrategy.Value("ES_WEIGHT_STREAMING") == ExecutionStrategy.ES_WEIGHT_STREAMING


def test_debug_args_have_the_fields_of_launch_scripts():
    args = DebugArgs()
    args.debug_ini.frozen_content = "ws_dense_dmatmul: true"
    args.debug_mgr.clean_pod_policy = DebugArgs.DebugMGR.CleanPodPolicy.NONE
    args.debug_mgr.task_spec_hints["chief"].container_image = "image"
    args.debug_mgr.scheduler_hints["allow-systems"] = "one"
    args.debug_mgr.labels["user"] = "me"
    args.debug_crd.pipeline_options.full_config = json_format.MessageToJson(fill_full_config())
    twin = DebugArgs.FromString(args.SerializeToString())
    assert twin == args
    assert twin.debug_mgr.task_spec_hints["chief"].container_image == "image"
    assert dict(twin.debug_mgr.scheduler_hints) == {"allow-systems": "one"}


def test_declared_messages_may_use_one_enum_twice_and_repeat_it():
    enum = declare_enum("TestColor", {"RED": 0, "BLUE": 5})
    message_class = declare_message("TestPalette", {"main": enum, "others": Repeated(enum)})
    message = message_class(main=enum.BLUE, others=[enum.RED, enum.BLUE])
    assert message_class().main == enum.RED
    assert list(message.others) == [0, 5]
