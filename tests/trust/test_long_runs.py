"""A long run with evaluations and checkpoints takes no more of anything than a short one.

`CEREBRAS_TF_STEPS` sets another number of steps than 20,000.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
STEPS = int(os.environ.get("CEREBRAS_TF_STEPS", "20000"))
EVERY = max(STEPS // 300, 1)
MAX_GROWTH_MB = 20


class Usage:
    """What this process uses, sampled at evaluations."""

    def __init__(self, folder):
        self._folder, self.samples = folder, []

    def sample(self):
        lines = Path("/proc/self/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        self.samples.append(
            {
                "MB": int(status["VmRSS"].split()[0]) / 1024,
                "descriptors": len(os.listdir("/proc/self/fd")),
                "threads": len(os.listdir("/proc/self/task")),
                "shared memory": len(os.listdir("/dev/shm")),
                "files": sum(len(files) for _, _, files in os.walk(self._folder)),
            }
        )

    def check(self):
        """Compares the last tenth with the tenth after the first: all of them, and memory by MB."""
        tenth = max(len(self.samples) // 10, 1)
        first, last = self.samples[tenth : 2 * tenth], self.samples[-tenth:]
        for name in self.samples[0]:
            least, most = (max(s[name] for s in part) for part in (first, last))
            print(f"{name}: {least:.6g} to {most:.6g} in {len(self.samples)} evaluations")
            assert most <= least + (MAX_GROWTH_MB if name == "MB" else 0), name


@pytest.mark.tf
def test_training_with_evaluations_is_flat(tmp_path):
    tf = pytest.importorskip("tensorflow")
    from cerebras_tf import CerebrasEstimator, CSRunConfig
    from tests.estimator import regression

    gc.unfreeze()  # as in a script of a user: training freezes objects if nothing else is frozen
    usage = Usage(tmp_path)

    class Sample(tf.estimator.SessionRunHook):
        def end(self, session):
            usage.sample()

    config = CSRunConfig(save_checkpoints_steps=EVERY, keep_checkpoint_max=2)
    estimator = CerebrasEstimator(regression.model_fn, str(tmp_path), config=config, params={})
    estimator.train_and_evaluate(
        tf.estimator.TrainSpec(regression.dataset, max_steps=STEPS),
        tf.estimator.EvalSpec(
            regression.dataset, steps=1, hooks=[Sample()], throttle_secs=0, start_delay_secs=0
        ),
    )
    usage.check()


def test_fitting_with_evaluations_is_flat(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    import cerebras_tf.torch
    from cerebras_tf.torch_step.evaluation import TorchEvaluation

    usage, loss = Usage(tmp_path), TorchEvaluation.loss

    def sampled(evaluation, batches):
        usage.sample()
        return loss(evaluation, batches)

    monkeypatch.setattr(TorchEvaluation, "loss", sampled)
    model = torch.nn.Linear(4, 2)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 4), np.float32))
    cerebras_tf.torch.fit(
        model,
        torch.optim.AdamW(model.parameters()),
        [{"x": x}],
        steps=STEPS,
        loss=lambda module, batch: module(batch["x"]).square().mean(),
        eval_loader=[{"x": x}],
        eval_every=EVERY,
        model_dir=str(tmp_path),
        save_every=EVERY,
        keep=2,
    )
    usage.check()
