"""Tests of config/run_options.py: every option has a text, and rules between options."""

from __future__ import annotations

import dataclasses

import pytest

from cerebras_tf.compiler.pipeline import PRECISIONS
from cerebras_tf.config import schema
from cerebras_tf.config.run_options import EstimatorOptions, RunConfigParams, SharedOptions
from cerebras_tf.environment import MAX_THREADS
from tests.messages import names

FIELDS = {each.name: each for each in dataclasses.fields(SharedOptions)}


@pytest.mark.parametrize("cls", [SharedOptions, EstimatorOptions, RunConfigParams])
def test_every_option_says_what_it_does(cls):
    assert all(each.metadata["text"].endswith(".") for each in dataclasses.fields(cls))


def test_limits_are_those_of_the_packages_that_use_them():
    assert FIELDS["precision"].metadata["choices"] == tuple(PRECISIONS)
    assert FIELDS["num_threads"].metadata["below"] == MAX_THREADS + 1


@pytest.mark.parametrize(
    ("cls", "given", "key"),
    [
        (RunConfigParams, {"validate_only": True, "compile_only": True}, "compile_only"),
        (RunConfigParams, {"checkpoint_path": "a", "resume_from": "b"}, "resume_from"),
        (RunConfigParams, {"device": "/cpu:0", "cs_ip": "10.0.0.1"}, "device"),
        (RunConfigParams, {"device": "/cpu:0", "compile_only": True}, "compile_only"),
        *((RunConfigParams, {"device": name}, "device") for name in ("", "x", "/cpu:1", "gpu")),
        (RunConfigParams, {"enable_distributed": True}, "enable_distributed"),
        (RunConfigParams, {"memoryx_ram_gb": 1}, "memoryx_ram_gb"),
        (RunConfigParams, {"cs_ip": "host:abc"}, "cs_ip"),
        (RunConfigParams, {"memoryx_dir": "~/store"}, "memoryx_dir"),
        (RunConfigParams, {"keep_float32": ["("]}, "keep_float32"),
        (EstimatorOptions, {"keep_float32": ["a"]}, "keep_float32"),
        (EstimatorOptions, {"attention_precision": "bfloat16"}, "attention_precision"),
        (EstimatorOptions, {"use_vsl": True, "precision": "emulate"}, "use_vsl"),
    ],
)
def test_options_that_exclude_or_need_one_another_are_refused(cls, given, key):
    report = schema.Report("f.yaml")
    schema.build(cls, given, report)
    assert len(report.messages) == 1 and names(report.text(), f"f.yaml: {key} ", "Received: ")


@pytest.mark.parametrize("device", ["/cpu:0", "cpu:0", "/device:CPU:0", "/gpu:1"])
def test_devices_of_tensorflow_are_taken(device):
    assert schema.build(RunConfigParams, {"device": device}, schema.Report("f.yaml"))


def test_options_of_the_real_cluster_are_listed():
    given = {"num_wgt_servers": 2, "multiple_workers": False, "ir_mode": "x", "mount_dirs": ["/a"]}
    params = schema.build(RunConfigParams, given, schema.Report("f.yaml"))
    assert params.without_effect() == ["num_wgt_servers", "ir_mode", "mount_dirs"]
