"""Checks the run configuration: addresses, its own fields, and that copies keep them."""

from __future__ import annotations

import socket

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.errors import ConfigError, SystemUnreachableError
from cerebras_tf.estimator.run_config import (
    CSRunConfig,
    check_wafer_address,
    is_in_process,
    normalize_cs_ip,
)

pytestmark = pytest.mark.tf

IN_PROCESS = [
    None,
    "",
    "  ",
    "127.0.0.1",
    "127.0.0.1:9000",
    "127.3.2.1",
    "localhost",
    "localhost:9000",
    "::1",
    "[::1]",
    "[::1]:9000",
]


class SomeConfig:
    """Stands for a configuration message that knows a number of wafers."""

    def __init__(self, num_csx: int) -> None:
        self.num_csx = num_csx


@pytest.mark.parametrize("cs_ip", IN_PROCESS)
def test_empty_and_loopback_addresses_mean_the_wafer_in_this_process(cs_ip):
    assert is_in_process(cs_ip)
    check_wafer_address(cs_ip)


@pytest.mark.parametrize("cs_ip", ["10.1.2.3", "127.0.0.1:9001", "wafer.example", "0.0.0.0"])
def test_other_addresses_do_not_mean_the_wafer_in_this_process(cs_ip):
    assert not is_in_process(cs_ip)


@pytest.mark.parametrize(
    "cs_ip,expected",
    [("10.1.2.3", "10.1.2.3:9000"), ("host:77", "host:77"), ("fe80::1", "[fe80::1]:9000")],
)
def test_normalize_appends_the_wafers_port_where_none_is_given(cs_ip, expected):
    assert normalize_cs_ip(cs_ip) == expected
    assert normalize_cs_ip(expected) == expected


@pytest.mark.parametrize("cs_ip", ["host:", "host:abc", "host:0", "host:70000", ":9000", "[::1]x"])
def test_a_malformed_address_is_refused(cs_ip):
    with pytest.raises(ConfigError, match="HOST or HOST:PORT. Received: "):
        CSRunConfig(cs_ip=cs_ip)


def test_an_address_nothing_answers_at_is_refused():
    with socket.socket() as holder:  # bound but not listening: connections are refused
        holder.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(SystemUnreachableError, match=f"{address}; nothing answers there"):
            check_wafer_address(address)


def test_an_address_where_something_else_listens_is_refused_and_says_so():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(SystemUnreachableError, match="something listens there, but"):
            check_wafer_address(address)


def test_a_host_name_that_does_not_resolve_is_named(monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(SystemUnreachableError, match="host name 'wafer.invalid' is not known"):
        check_wafer_address("wafer.invalid")


def test_the_configuration_makes_no_connection():
    assert CSRunConfig(cs_ip="192.0.2.1").cs_ip == "192.0.2.1:9000"


def test_class_name_is_the_one_wrappers_look_for():
    assert CSRunConfig.__name__ == "CSRunConfig"


def test_fields_of_tf_estimator_pass_through(tmp_path):
    config = CSRunConfig(model_dir=str(tmp_path), save_checkpoints_steps=7, tf_random_seed=3)
    assert config.model_dir == str(tmp_path)
    assert config.save_checkpoints_steps == 7
    assert config.tf_random_seed == 3
    assert config.task_id == 0


def test_own_fields_survive_the_copies_tf_estimator_makes(tmp_path):
    config = CSRunConfig(
        cs_ip="127.0.0.1", system_name="one", cs_config=SomeConfig(1), stack_params={"ir_mode": "x"}
    )
    copy = tf.estimator.RunConfig.replace(config, model_dir=str(tmp_path))
    assert isinstance(copy, CSRunConfig)
    assert (copy.cs_ip, copy.system_name, copy.num_csx) == ("127.0.0.1:9000", "one", 1)
    assert copy.cs_config.num_csx == 1
    assert copy.stack_params == {"ir_mode": "x"}
    estimator = tf.estimator.Estimator(lambda features, labels: None, str(tmp_path), config)
    assert estimator.config.cs_ip == "127.0.0.1:9000"


def test_replace_changes_own_fields_and_leaves_the_original(tmp_path):
    config = CSRunConfig(cs_ip="10.0.0.1")
    changed = config.replace(cs_ip=None, model_dir=str(tmp_path))
    assert changed.cs_ip is None
    assert changed.model_dir == str(tmp_path)
    assert config.cs_ip == "10.0.0.1:9000"
    with pytest.raises(ConfigError, match="num_csx"):
        config.replace(num_csx=2)


def test_as_many_wafers_as_the_launcher_has_started(monkeypatch):
    monkeypatch.setenv("CEREBRAS_TF_WAFERS", "2")
    assert [CSRunConfig(num_csx=number).num_csx for number in (None, 1, 2)] == [2, 2, 2]
    with pytest.raises(ConfigError, match="csrun_wse --num_csx 4"):
        CSRunConfig(num_csx=4)


@pytest.mark.parametrize("num_csx", [2, 0, -1, True, "4", 1.0])
def test_any_number_of_wafers_but_one_is_refused(num_csx):
    with pytest.raises(ConfigError, match=r"num_csx: .* Received: "):
        CSRunConfig(num_csx=num_csx)


def test_number_of_wafers_is_read_from_cs_config():
    with pytest.raises(ConfigError, match="processes of this job.* Received: 16"):
        CSRunConfig(cs_config=SomeConfig(16))


def test_execution_mode_follows_the_launcher(monkeypatch):
    monkeypatch.delenv("CEREBRAS_EXECUTION_MODE", raising=False)
    assert EXECUTION_MODE.get() == "weight_streaming"
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipeline")
    assert EXECUTION_MODE.get() == "pipeline"
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined")
    with pytest.raises(ConfigError, match="must be weight_streaming or pipeline. Received"):
        EXECUTION_MODE.get()


@pytest.mark.parametrize("given", [0, -1.5, True, "6", float("nan"), float("inf")])
def test_memory_for_activations_must_be_an_amount(given):
    with pytest.raises(ConfigError, match=r"wafer_memory_gb: .* above 0 .* Received: "):
        CSRunConfig(wafer_memory_gb=given)
    config = CSRunConfig(wafer_memory_gb=6)
    assert config.wafer_memory_gb == 6.0 and CSRunConfig().wafer_memory_gb is None
    with pytest.raises(ConfigError, match="wafer_memory_gb"):
        config.replace(wafer_memory_gb=given)


def test_memory_may_be_a_number_of_numpy(tmp_path):
    config = CSRunConfig(memoryx_dir=tmp_path, memoryx_ram_gb=np.float32(0.5))
    assert (config.memoryx_dir, config.memoryx_ram_gb) == (str(tmp_path), 0.5)
    assert CSRunConfig(micro_batches=np.int64(2)).micro_batches == 2


@pytest.mark.parametrize("name", ["memoryx_ram_gb", "wafer_memory_gb"])
@pytest.mark.parametrize("value", [1e9, 1e300, 10**400])
def test_memory_beyond_all_machines_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name}: .* below 1e[+]09. Received: "):
        CSRunConfig(memoryx_dir="here", **{name: value})


@pytest.mark.parametrize("folder", ["", "  ", "a\0b", 5, "~/store", "gs://bucket/store"])
def test_weights_rest_in_a_folder(folder):
    with pytest.raises(ConfigError, match="memoryx_dir: must name a folder of this machine"):
        CSRunConfig(memoryx_dir=folder)
    with pytest.raises(ConfigError, match="memoryx_dir: must name a folder of this machine"):
        CSRunConfig().replace(memoryx_dir=folder)


def test_moments_are_of_a_type_or_its_name():
    for given in ("bfloat16", tf.bfloat16):
        config = CSRunConfig(memoryx_dir="store", memoryx_moment_dtype=given)
        assert type(config.memoryx_moment_dtype) is str
    for given in ("float16", tf.float16):
        with pytest.raises(ConfigError, match="memoryx_moment_dtype: must be bfloat16"):
            CSRunConfig(memoryx_dir="store", memoryx_moment_dtype=given)


def test_leaving_padding_out_is_yes_no_or_where_proved():
    assert CSRunConfig().use_vsl is None
    assert CSRunConfig(use_vsl=False).replace(use_vsl=True).use_vsl is True
    with pytest.raises(ConfigError, match="use_vsl: must be True, False or None. Received: 'auto'"):
        CSRunConfig(use_vsl="auto")


def test_padding_is_not_left_out_of_an_emulated_precision():
    assert CSRunConfig(precision="emulate").use_vsl is None
    with pytest.raises(ConfigError, match="^use_vsl: .*precision emulate"):
        CSRunConfig(use_vsl=True, precision="emulate")
    with pytest.raises(ConfigError, match="^use_vsl: .*precision emulate"):
        CSRunConfig(use_vsl=True).replace(precision="emulate")
