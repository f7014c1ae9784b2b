"""The scheduler of a run that continues."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from cerebras_tf.errors import ConfigError
from cerebras_tf.torch.schedule import Schedule
from tests.messages import raises


@pytest.mark.parametrize("named", [{}, {"scheduler_class": "StepLR"}], ids=["older", "named"])
def test_a_checkpoint_of_a_run_with_a_scheduler_needs_one(named):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    wanted = named.get("scheduler_class", "a scheduler")
    with raises(ConfigError, "step-000002", f"{wanted}. Received: None."):
        Schedule(None, optimizer).restore({"scheduler": {}, **named}, Path("step-000002"))
