"""Tests of CSRunConfig: its arguments follow from the options of a run, and copies keep them."""

from __future__ import annotations

import dataclasses
import inspect
import re

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.config.run_options import EstimatorOptions
from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator.run_config import CSRunConfig, as_cs_run_config
from tests.messages import names
from tests.swarmx.ranks import join_job

pytestmark = pytest.mark.tf

OPTIONS = [each.name for each in dataclasses.fields(EstimatorOptions)]


class SomeConfig:
    """Stands for a configuration message that knows a number of wafers."""

    def __init__(self, num_csx: int) -> None:
        self.num_csx = num_csx


def test_every_option_is_an_argument_a_property_and_documented():
    config, parameters = CSRunConfig(), inspect.signature(CSRunConfig).parameters
    assert {*OPTIONS, "kwargs"} == set(parameters)
    for name in OPTIONS:
        getattr(config, name)
        assert re.search(rf"^ +{name}: ", CSRunConfig.__doc__, re.MULTILINE)
    with pytest.raises(TypeError, match="no_such_option"):
        CSRunConfig(no_such_option=1)
    with pytest.raises(TypeError, match="positional"):
        CSRunConfig(None, None, None, None, 1, True)


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
        "127.0.0.1", system_name="one", cs_config=SomeConfig(1), stack_params={"ir_mode": "x"}
    )
    copy = tf.estimator.RunConfig.replace(config, model_dir=str(tmp_path))
    assert isinstance(copy, CSRunConfig)
    assert (copy.cs_ip, copy.system_name, copy.num_csx) == ("127.0.0.1:9000", "one", 1)
    assert copy.cs_config.num_csx == 1
    assert copy.stack_params == {"ir_mode": "x"}
    estimator = tf.estimator.Estimator(lambda features, labels: None, str(tmp_path), config)
    assert estimator.config.cs_ip == "127.0.0.1:9000"


def test_replace_changes_own_fields_and_leaves_the_original(tmp_path):
    config = CSRunConfig(cs_ip="192.0.2.1")  # makes no connection
    changed = config.replace(cs_ip=None, model_dir=str(tmp_path))
    assert changed.cs_ip is None
    assert changed.model_dir == str(tmp_path)
    assert config.cs_ip == "192.0.2.1:9000"
    for wrong in ({"num_csx": 0}, {"wafer_memory_gb": 0}, {"memoryx_ram_gb": 1}):
        with pytest.raises(ConfigError) as error:
            config.replace(**wrong)
        assert names(error.value, *wrong)


def test_a_plain_run_config_gets_the_defaults(tmp_path):
    plain = tf.estimator.RunConfig(model_dir=str(tmp_path), tf_random_seed=3)
    config, default = as_cs_run_config(plain), CSRunConfig()
    assert (config.model_dir, config.tf_random_seed) == (str(tmp_path), 3)
    assert [getattr(config, name) for name in OPTIONS] == [getattr(default, n) for n in OPTIONS]
    assert as_cs_run_config(default) is default


def test_as_many_wafers_as_the_launcher_has_started(monkeypatch, tmp_path):
    join_job(monkeypatch, tmp_path)
    found = [CSRunConfig(num_csx=number).num_csx for number in (None, 1, 2, 4)]
    assert found == [2, 2, 2, 4]  # each process computes the batches of two wafers then
    with pytest.raises(ConfigError) as error:
        CSRunConfig(num_csx=3)
    assert names(error.value, "num_csx", "csrun_wse --num_csx 3")


def test_one_process_computes_the_batches_of_all_wafers():
    assert CSRunConfig(num_csx=2).num_csx == 2
    assert CSRunConfig(cs_config=SomeConfig(16)).num_csx == 16


@pytest.mark.parametrize(
    "wrong",
    [
        *({"num_csx": number} for number in (0, -1, True, 1.5)),
        {"cs_config": SomeConfig(0)},
        *({"wafer_memory_gb": number} for number in (0, -1.5, True, float("nan"), float("inf"))),
        *({"memoryx_dir": "here", "memoryx_ram_gb": number} for number in (1e9, 1e300, 10**400)),
        *({"memoryx_dir": folder} for folder in ("", "  ", "a\0b", 5, "~/store", "gs://a/b")),
        {"memoryx_moment_dtype": tf.float16},
        {"use_vsl": "auto"},
        {"micro_batches": 0},
        {"micro_batches": "2"},
        {"num_threads": 1025},
        {"precision": "float16"},
    ],
)
def test_wrong_values_are_refused_by_their_key(wrong):
    with pytest.raises(ConfigError) as error:
        CSRunConfig(**wrong)
    key = "num_csx" if "cs_config" in wrong else list(wrong)[-1]
    assert names(error.value, key, "Received: ")


def test_numbers_paths_and_types_of_libraries_are_taken(tmp_path):
    config = CSRunConfig(
        memoryx_dir=tmp_path,
        memoryx_ram_gb=np.float32(0.5),
        micro_batches=np.int64(2),
        memoryx_moment_dtype=tf.bfloat16,
        precision="bfloat16",
        keep_float32="head",
    )
    assert (config.memoryx_dir, config.memoryx_ram_gb) == (str(tmp_path), 0.5)
    assert (config.memoryx_bytes, config.micro_batches) == (5 * 10**8, 2)
    assert config.memoryx_moment_dtype == "bfloat16"
    assert config.keep_float32 == ("head",)


def test_execution_mode_follows_the_launcher(monkeypatch):
    monkeypatch.delenv("CEREBRAS_EXECUTION_MODE", raising=False)
    assert EXECUTION_MODE.get() == "weight_streaming"
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipeline")
    assert EXECUTION_MODE.get() == "pipeline"
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined")
    with pytest.raises(ConfigError, match="must be weight_streaming or pipeline. Received"):
        EXECUTION_MODE.get()
