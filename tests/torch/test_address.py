"""`cerebras_tf.torch.fit` on a wafer at an address equals it on the wafer in this process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from torch.utils.data import DataLoader

from cerebras_tf.address import client
from cerebras_tf.errors import ConfigError, SystemUnreachableError
from cerebras_tf.torch.options import FitOptions
from cerebras_tf.torch_step.training import TorchTraining
from tests.address.conftest import files, serve  # noqa: F401  # fixtures
from tests.torch.test_fit import assert_same, data, run


@pytest.fixture
def address(serve, files):  # noqa: F811
    """Options of a wafer at an address."""
    yield {"cs_ip": f"127.0.0.1:{serve().port}", "credentials_path": str(files[0])}
    client.release_wafers()


def test_fit_equals_that_of_the_wafer_in_this_process(tmp_path, address):
    given = {"batches_per_step": 2, "dropout": 0.3}
    given["eval_loader"] = DataLoader(data(6), 6)
    here = run(3, **given)
    run(2, model_dir=tmp_path, **address, **given)
    there = run(3, model_dir=tmp_path, **address, **given)  # continues from a checkpoint
    assert_same(here, there)
    assert here[2].losses[3] == there[2].losses[3]
    assert here[2].evaluations == there[2].evaluations


def test_the_error_of_a_lost_server_names_the_last_checkpoint(tmp_path, monkeypatch):
    step = TorchTraining.step

    def lost_after_two(training, tensors):
        if training.global_step == 2:
            raise SystemUnreachableError("lost.")
        return step(training, tensors)

    monkeypatch.setattr(TorchTraining, "step", lost_after_two)
    with pytest.raises(SystemUnreachableError, match=r"The last is .*step-0*2\.$"):
        run(3, model_dir=tmp_path, save_every=1)


def test_options_of_this_computer_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be combined with credentials_path"):
        FitOptions(cs_ip="host", credentials_path="x", memoryx_dir=str(tmp_path))
