"""`fit` on two processes equals one wafer with batches of double size."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from torch.utils.data import DataLoader, TensorDataset

from cerebras_tf.torch import fit
from tests.swarmx.ranks import ROOT, needs_mpi
from tests.torch_step.test_training import CLASSES, Tagger

pytestmark = needs_mpi()
STEPS = 6


def data():
    """Rows have 1 to 5 labels."""
    ids = torch.randint(0, 23, (24, 5), generator=torch.Generator().manual_seed(1))
    labels = ids % CLASSES
    for row in range(24):
        labels[row, 1 + row % 5 :] = -100
    return TensorDataset(ids, labels)


def train(rows, folder=None, **settings):
    """Losses and final weights."""
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = fit(
        model,
        optimizer,
        DataLoader(data(), rows),
        steps=STEPS,
        loss=lambda model, batch: model(*batch),
        clip=1.0,
        log_every=1,
        model_dir=folder,
        eval_loader=DataLoader(data(), 5),
        **settings,
    )
    weights = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    return {"losses": list(found.losses.values()), "eval": found.evaluations, "weights": weights}


CODE = """
import json, sys
sys.path.insert(0, {root!r})
from cerebras_tf.swarmx import job
from tests.torch.test_wafers import train
settings = json.loads(sys.argv[1])
found = train(4, {folder!r}, save_every=4, **settings)
with open({folder!r} + f"/rank_{{job.rank()}}.json", "w") as file:
    json.dump(found, file)
"""


@pytest.mark.parametrize("files", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_equal_one_with_batches_of_double_size(files, tmp_path):
    settings = {"memoryx_dir": str(tmp_path / "files")} if files else {}
    code = CODE.format(root=str(ROOT), folder=str(tmp_path))
    command = [str(ROOT / "scripts" / "csrun_wse"), "--num_csx", "2", sys.executable, "-c", code]
    done = subprocess.run(
        [*command, json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    both = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert both[0] == both[1]
    alone = train(8)
    np.testing.assert_allclose(both[0]["losses"], alone["losses"], rtol=1e-5)
    for name, values in alone["weights"].items():
        np.testing.assert_allclose(both[0]["weights"][name], values, rtol=1e-4, atol=1e-5)
    assert both[0]["eval"]["6"] == pytest.approx(alone["eval"][6], rel=1e-5)
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-000004", "step-000006"]
    resumed = train(4, str(tmp_path), num_csx=2)  # in one process
    assert not resumed["losses"]
    for name, values in both[0]["weights"].items():
        assert resumed["weights"][name] == values
