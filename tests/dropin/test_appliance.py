"""The appliance's names: cluster settings, debug settings, sparsifiers."""

from __future__ import annotations

import numpy as np
import pytest
from cerebras_appliance.cluster_client import VolumeMount
from cerebras_appliance.CSConfig import CSConfig
from cerebras_appliance.run_utils import get_debug_args

from cerebras.tf.ws.ws_sparsify import SPARSIFIER_MAP, get_AdamW_aware_sparsifier_class
from cerebras_tf.errors import ConfigError
from tests.messages import raises


def test_cs_config_takes_every_known_setting():
    config = CSConfig(
        num_csx=1,
        max_wgt_servers=12,
        mgmt_address="server:443",
        credentials_path="c",
        debug_args=None,
        mount_dirs=["/data"],
        python_paths=["/code"],
        transfer_processes=5,
        num_workers_per_csx=8,
        execution_strategy=2,
        job_labels=["model=gpt"],
        max_act_per_csx=1,
        mgmt_namespace="n",
        job_time_sec=60,
        disable_version_check=True,
        volume_mounts=[VolumeMount(name="data", mount_path="/data")],
    )
    assert config.volume_mounts[0].mount_path == "/data"
    assert config != CSConfig()
    with pytest.raises(TypeError, match="num_csxs"):
        CSConfig(num_csxs=2)


@pytest.mark.parametrize(
    "text",
    ['debug_mgr { labels { key: "a" value: "b" } }', '{"debug_mgr": {"labels": {"a": "b"}}}'],
)
def test_debug_args_are_read_as_text_and_as_json(tmp_path, text):
    path = tmp_path / "debug.proto"
    path.write_text(text)
    assert dict(get_debug_args(str(path)).debug_mgr.labels) == {"a": "b"}


@pytest.mark.parametrize("text", ["debug_manager { }", '{"debug_mgr": 1}', None])
def test_debug_args_that_cannot_be_read_are_refused_by_path(tmp_path, text):
    path = tmp_path / "debug.proto"
    if text is not None:
        path.write_text(text)
    with raises(ConfigError, path, "DebugArgs"):
        get_debug_args(str(path))


def test_sparsifiers_have_the_original_s_names_and_arguments():
    sparsifier_class = get_AdamW_aware_sparsifier_class(SPARSIFIER_MAP["topk"])
    sparsifier = sparsifier_class(n_iter=3, sparsity_level=0.5)
    weights = {"kernel": np.float32([[1, 2], [-3, 0.5]])}
    assert sparsifier.apply_sparsity(step=3) and not sparsifier.apply_sparsity(step=1)
    found = sparsifier.get_masked_weights(3, weights, float("nan"))
    np.testing.assert_array_equal(found["kernel"], [[np.nan, 2], [-3, np.nan]])
    assert sparsifier.get_num_sparsified_values("kernel", float("nan")) == 2
