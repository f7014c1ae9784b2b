"""`cerebras_tf.torch.fit`: equal to a torch loop, resumable, and without TensorFlow."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.torch import fit
from cerebras_tf.torch.options import FitOptions
from tests.messages import names, raises
from tests.torch_step.test_training import CLASSES, Tagger

ROOT = Path(__file__).parents[2]


def data(count=20, length=5):
    ids = torch.randint(0, 23, (count, length), generator=torch.Generator().manual_seed(1))
    return TensorDataset(ids, ids % CLASSES)


def loss(model, batch):
    return model(*batch)


def run(steps=7, dropout=0.0, seed=0, loader=None, **settings):
    """A model after training, its optimizer, and the result."""
    torch.manual_seed(seed)
    model = Tagger(dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    loader = loader or DataLoader(data(), 6, shuffle=True)
    settings = {"log_every": 1, "clip": 1.0, **settings}
    found = fit(model, optimizer, loader, steps=steps, loss=loss, scheduler=scheduler, **settings)
    return model, optimizer, found


def bits(model, optimizer):
    tensors = [*model.state_dict().values()]
    tensors += [tensor for state in optimizer.state.values() for tensor in state.values()]
    return [tensor.clone() for tensor in tensors]


def assert_same(first, second):
    assert all(map(torch.equal, bits(*first[:2]), bits(*second[:2])))


def test_fit_equals_a_torch_loop(capfd):
    model, optimizer, found = run()
    torch.manual_seed(0)
    other = Tagger()
    theirs = torch.optim.AdamW(other.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, 20)
    loader, losses = DataLoader(data(), 6, shuffle=True), []
    while len(losses) < 7:
        for batch in loader:
            theirs.zero_grad()
            value = loss(other, batch)
            value.backward()
            torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            theirs.step()
            scheduler.step()
            losses.append(float(value.detach()))
    np.testing.assert_allclose(list(found.losses.values()), losses[:7], rtol=1e-5)
    assert list(found.losses) == list(range(1, 8)) and optimizer.param_groups[0]["lr"] < 1e-2


def test_a_finished_run_is_resumed_to_more_steps_with_the_same_bits(tmp_path):
    folder = str(tmp_path / "run")
    whole = run(11, 0.3, model_dir=str(tmp_path / "whole"), save_every=3)
    run(4, 0.3, model_dir=folder, save_every=3)
    part = run(11, 0.3, seed=5, model_dir=folder, save_every=3, keep=2)
    assert_same(whole, part)
    assert sorted(p.name for p in Path(folder).glob("step-*")) == ["step-000009", "step-000011"]
    again = run(11, 0.3, seed=6, model_dir=folder)
    assert again[2].global_step == 11 and not again[2].losses
    assert_same(whole, again)


def test_evaluation_during_training_changes_no_bits(tmp_path):
    plain = run(6, 0.3)
    evaluated = run(
        6, 0.3, eval_loader=DataLoader(data(10), 4, shuffle=True), eval_every=2, eval_steps=2
    )
    assert_same(plain, evaluated)
    assert list(evaluated[2].evaluations) == [2, 4, 6]
    model = plain[0].eval()
    whole = run(6, 0.3, eval_loader=DataLoader(data(10), 4))[2].evaluations[6]
    with torch.no_grad():
        expected = float(model(*data(10)[:]))
    assert whole == pytest.approx(expected, rel=1e-5)


def test_scalars_and_profile_are_written(tmp_path):
    run(6, model_dir=str(tmp_path), loggers=("tensorboard", "csv"), profile=2, log_every=2)
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 4, 6]
    assert float(rows[1]["learning_rate"]) < float(rows[0]["learning_rate"])
    assert (tmp_path / "profile" / "trace.json").exists()
    (events,) = tmp_path.glob("events.out.tfevents.*")
    tf = pytest.importorskip("tensorflow")
    found = [e for e in tf.compat.v1.train.summary_iterator(str(events)) if e.summary.value]
    assert [e.step for e in found] == [1, 2, 4, 6]
    tags = {v.tag: v.simple_value for v in found[0].summary.value}
    assert tags["loss"] == pytest.approx(float(rows[0]["loss"]))


def test_a_signal_ends_the_step_and_writes_a_checkpoint(tmp_path, capsys):
    batches = []

    class Loader:
        def __iter__(self):
            for batch in DataLoader(data(), 6):
                batches.append(batch)
                if len(batches) == 3:
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch

    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(model, optimizer, Loader(), steps=9, loss=loss, model_dir=str(tmp_path))
    assert signal.getsignal(signal.SIGINT) is before
    (folder,) = tmp_path.glob("step-*")
    names(capsys.readouterr().err, "SIGINT", f"resumes from {folder}")
    assert 2 <= int(folder.name[5:]) <= 4


def averaged_run(steps, model_dir, **settings):
    """Trains with a GradScaler and averaged weights; returns all states."""
    torch.manual_seed(0)
    model = Tagger(0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", 2.0**127, growth_interval=2)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def update():
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        averaged.update_parameters(model)

    loader = DataLoader(data(), 6, shuffle=True)
    fit(
        model,
        optimizer,
        loader,
        steps=steps,
        loss=lambda *given: 100 * loss(*given),
        update=update,
        model_dir=model_dir,
        **settings,
    )
    tensors = [*bits(model, optimizer), *averaged.state_dict().values()]
    return tensors, scaler.state_dict()


def test_a_scaler_and_averaged_weights_are_kept_in_checkpoints(tmp_path):
    whole = averaged_run(9, str(tmp_path / "whole"))
    averaged_run(4, str(tmp_path / "run"), memoryx_dir=str(tmp_path / "files"))
    part = averaged_run(9, str(tmp_path / "run"))
    assert part[1] == whole[1] and part[1]["scale"] < 2.0**127
    assert all(map(torch.equal, part[0], whole[0]))


class Continuing:
    """An iterable that does not start again."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def __iter__(self):
        yield from self.batches


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize(
    "wrap",
    [iter, Continuing, lambda given: DataLoader(Stream(iter(given)), None), lambda given: []],
    ids=["iterator", "iterable", "DataLoader", "empty"],
)
def test_an_evaluation_that_cannot_start_again_is_refused(wrap):
    model = Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = [{"x": torch.full((2, 3), float(value))} for value in range(5)]
    fit(model, optimizer, given, steps=1, eval_loader=DataLoader(Stream(given), None))
    with raises((ConfigError, DataError), "eval_loader"):
        fit(model, optimizer, given, steps=1, eval_loader=wrap(given))


def x(*shape):
    return {"x": torch.ones(*shape)}


class Sum(torch.nn.Module):
    """Returns a loss."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x).square().mean()


def fitted(folder, lines, steps=1, rate=0.5, decay=0.0, schedule=None, frozen=(), **settings):
    """The optimizer after a run whose lines are added to `lines`."""
    torch.manual_seed(0)
    model = Sum()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    scheduler = schedule and schedule(optimizer)
    with pytest.MonkeyPatch.context() as patch:
        module = sys.modules["cerebras_tf.torch.fit"]
        patch.setattr(module, "log_info", lambda form, *given: lines.append(given[0]))
        given = [x(2, 3)]
        fit(model, optimizer, given, steps=steps, model_dir=folder, scheduler=scheduler, **settings)
    return optimizer


def by_step(gamma):
    return lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma)


def by_function(factor):
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: factor / (1 + step)
    )


def joined(gamma):
    def schedule(optimizer):
        parts = [by_step(1.0)(optimizer), by_step(gamma)(optimizer)]
        return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [9])

    return schedule


# What differs in the second run, what its line names, and its learning rate in the end.
DIFFERENT = {
    "nothing": ({}, [], 0.5),
    "rate": ({"rate": 0.25}, ["lr of group 0", 0.25, 0.5, "the checkpoint's"], 0.5),
    "decay": ({"decay": 0.1}, ["weight_decay of group 0", 0.1, 0.0, "this call's"], 0.5),
    "seed": ({"seed": 8}, ["seed", 8, 7, "the checkpoint's"], 0.5),
    "frozen": ({"frozen": ["layer.bias"]}, ["layer.bias", "not trained", "this call's"], 0.5),
    "same gamma": ({"schedule": by_step(0.5)}, [], 0.125),
    "gamma": ({"schedule": by_step(0.1)}, ["gamma", 0.1, 0.5, "the checkpoint's"], 0.125),
    "first rate": (
        {"schedule": by_step(0.5), "rate": 0.25}, ["initial_lr", 0.25, 0.5, "checkpoint's"], 0.125),
    "part": ({"schedule": joined(0.1)}, ["_schedulers/1/gamma", 0.1, 0.5], 0.5),
    "function": (
        {"schedule": by_function(2.0)}, ["learning rate", 0.5, 0.25, "this call's"], 1 / 3),
    "fewer steps": ({"steps": 1}, ["nothing to train", "step 1 of 1"], 0.5),
}  # fmt: skip
SCHEDULES = {"same gamma": by_step, "gamma": by_step, "first rate": by_step, "part": joined}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_from_the_checkpoint_is_logged(name, tmp_path):
    given, facts, rate = DIFFERENT[name]
    first = SCHEDULES[name](0.5) if name in SCHEDULES else None
    if name == "function":
        first = by_function(1.0)
    fitted(str(tmp_path), [], schedule=first, seed=7)
    lines = []
    optimizer = fitted(str(tmp_path), lines, **{"steps": 2, "seed": 7, **given})
    found = [line for line in lines if " in this call" in line or "nothing" in line]
    assert len(found) == bool(facts) and names(found, *facts)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@pytest.mark.parametrize("first, second", [(by_step(0.5), None), (None, joined(0.5)),
                                           (by_step(0.5), joined(0.5))])  # fmt: skip
def test_another_scheduler_is_refused(first, second, tmp_path):
    fitted(str(tmp_path), [], schedule=first)
    with raises(ConfigError, "scheduler", "step-000001"):
        fitted(str(tmp_path), [], steps=2, schedule=second)


def test_the_page_is_true(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "guides" / "pytorch.md").read_text(encoding="utf-8")
    missing = [e.name for e in dataclasses.fields(FitOptions) if f"`{e.name}`" not in text]
    assert missing == []
    monkeypatch.chdir(tmp_path)
    first, averaged, load, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found = {}
    exec(first, found)
    expected = [tensor.clone() for tensor in found["model"].state_dict().values()]
    found["model"][0].reset_parameters()
    exec(load, found)
    assert all(map(torch.equal, found["model"].state_dict().values(), expected))
    exec(averaged, found)
    assert found["averaged"].n_averaged == 100
