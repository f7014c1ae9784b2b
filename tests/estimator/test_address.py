"""An estimator on a wafer at an address: training, evaluation and prediction equal those here."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.address import client
from cerebras_tf.address.choose import choose_wafer
from cerebras_tf.address.credentials import load_credentials
from cerebras_tf.address.service import ServiceSettings
from cerebras_tf.errors import ConfigError, SystemUnreachableError
from tests.address.conftest import elsewhere, files, serve  # noqa: F401  # fixtures
from tests.estimator import regression

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


@pytest.fixture
def address(elsewhere, files):  # noqa: F811
    """Options of a wafer in a process without TensorFlow."""
    yield {"cs_ip": elsewhere, "credentials_path": str(files[0])}
    client.release_wafers()


def estimator(folder, params=None, **options):
    config = CSRunConfig(tf_random_seed=1, save_checkpoints_steps=4, **options)
    return CerebrasEstimator(_dropped, str(folder), config=config, params=params or {})


def _dropped(features, labels, mode, params):
    """The regression model, with dropout in training."""
    if mode == tf.estimator.ModeKeys.TRAIN:
        features = tf.nn.dropout(features, rate=0.2)
    return regression.model_fn(features, labels, mode, params)


def used(folder, options):
    """What training, evaluation and prediction give."""
    losses = []

    class Losses(tf.estimator.SessionRunHook):
        def before_run(self, context):
            return tf.estimator.SessionRunArgs(
                [context.session.graph.get_tensor_by_name("cost:0"), "hidden:0"]
            )

        def after_run(self, context, values):
            losses.append(values.results)

    made = estimator(folder, **options)
    train = tf.estimator.TrainSpec(regression.dataset, max_steps=8, hooks=[Losses()])
    evaluation = tf.estimator.EvalSpec(regression.dataset, steps=2, throttle_secs=0)
    metrics, _ = made.train_and_evaluate(train, evaluation)
    made.train(regression.ragged_dataset, steps=3)
    scores = [row["scores"] for row in made.predict(regression.ragged_dataset)]
    names = made.get_variable_names()
    variables = {name: made.get_variable_value(name) for name in names}
    return losses, metrics, made.evaluate(regression.dataset, steps=1), scores, variables


def test_results_equal_those_of_the_wafer_in_this_process(tmp_path, address):
    here, there = used(tmp_path / "here", {}), used(tmp_path / "there", address)
    found = client.status_of(address["cs_ip"], load_credentials(address["credentials_path"]))
    assert found["holder"] and found["steps"] > 10
    tf.nest.map_structure(np.testing.assert_array_equal, there, here)


def test_micro_batches_and_sums_equal_those_of_the_wafer_in_this_process(tmp_path, address):
    found = []
    for name, options in (("here", {}), ("there", address)):
        made = estimator(tmp_path / name, micro_batches=2, **options)
        made.train(regression.dataset, steps=3)
        found.append([made.get_variable_value(name) for name in ("output", "output/Momentum")])
    np.testing.assert_array_equal(*found)


def test_files_of_the_server_give_the_same_as_files_here(tmp_path, files, serve):  # noqa: F811
    settings = ServiceSettings(memoryx_dir=str(tmp_path / "a"), memoryx_bytes=10**6)
    address = f"127.0.0.1:{serve(settings=settings).port}"
    there = {"cs_ip": address, "credentials_path": str(files[0])}
    here = {"memoryx_dir": str(tmp_path / "b"), "memoryx_ram_gb": 0.001}
    found = []
    for name, options in (("there", there), ("here", here)):
        made = estimator(tmp_path / name, **options).train(regression.dataset, max_steps=4)
        error = made.evaluate(regression.dataset, steps=2)["error"]
        found.append([error, *(made.get_variable_value(n) for n in made.get_variable_names())])
    client.release_wafers()
    for value, wanted in zip(*found):
        np.testing.assert_array_equal(value, wanted)


def test_a_restarted_server_ends_the_run(tmp_path, files, serve):  # noqa: F811
    first = serve()
    options = {"cs_ip": f"127.0.0.1:{first.port}", "credentials_path": str(files[0])}

    class Restart(tf.estimator.SessionRunHook):
        def after_run(self, context, values):
            if int(context.session.run(v1.train.get_global_step())) == 6:
                first.stop()
                serve(options["cs_ip"])

    made = estimator(tmp_path / "there", **options)
    with pytest.raises(SystemUnreachableError, match=r"was restarted.*The last is .*ckpt-4"):
        made.train(regression.dataset, [Restart()], max_steps=8)
    made.train(regression.dataset, max_steps=8)
    whole = estimator(tmp_path / "here").train(lambda: regression.dataset(0), max_steps=4)
    whole.train(regression.dataset, max_steps=8)
    for name in ("output", "layer/kernel"):
        values = [each.get_variable_value(name) for each in (made, whole)]
        np.testing.assert_array_equal(*values)
    client.release_wafers()


def test_a_cluster_cannot_share_the_wafer(tmp_path, monkeypatch):
    tasks, own = {"chief": ["a:1"], "worker": ["b:1"]}, {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": tasks, "task": own}))
    made = estimator(tmp_path, cs_ip="host", credentials_path="x")
    with pytest.raises(ConfigError, match="combined with a cluster.*TF_CONFIG"):
        made.train(regression.dataset, steps=1)


def test_a_job_needs_as_many_wafers_there(tmp_path, address, monkeypatch):
    made = estimator(tmp_path, **address)
    with monkeypatch.context() as patch:
        patch.setattr("cerebras_tf.address.choose.job.wafers", lambda: 2)
        with pytest.raises(ConfigError, match="as many wafers must be there.*with 1"):
            choose_wafer(made.config.cs_ip, made.config.credentials_path, print)


def test_options_of_this_computer_are_refused(tmp_path, address):
    for option in ({"memoryx_dir": str(tmp_path)}, {"num_threads": 2}):
        with pytest.raises(ConfigError, match="cannot be combined with credentials_path"):
            CSRunConfig(**address, **option)
    with pytest.raises(ConfigError, match="has no effect without cs_ip"):
        CSRunConfig(credentials_path="x")
    with pytest.raises(SystemUnreachableError, match="credentials_path is not set"):
        estimator(tmp_path, cs_ip=address["cs_ip"]).train(regression.dataset, steps=1)
