"""Optimizers, traced as the user wrote them, against PyTorch."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from torch import nn, optim
from torch.optim import swa_utils

from cerebras_tf.errors import ConfigError, UnsupportedOpError
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.training import TorchTraining
from tests.messages import raises
from tests.torch_step.eager import assert_equal, clipped, train

OPTIMIZERS = {
    "AdamW": (optim.AdamW, {}),
    "Adam amsgrad": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "SGD": (optim.SGD, {}),
    "SGD Nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "RMSprop centered": (optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "Adagrad": (optim.Adagrad, {"initial_accumulator_value": 0.1}),
    "Adamax": (optim.Adamax, {}),
    "Adadelta": (optim.Adadelta, {}),
    "NAdam": (optim.NAdam, {}),
    "RAdam": (optim.RAdam, {"weight_decay": 0.1}),
    "ASGD": (optim.ASGD, {"t0": 2.0, "lambd": 0.1}),
    "Rprop": (optim.Rprop, {}),
    "Adafactor": (optim.Adafactor, {"weight_decay": 0.1}),
    "Adafactor d": (optim.Adafactor, {"d": 1.5, "eps": (1e-8, 1e-2), "maximize": True}),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def loss(module, batch):
    return (module(batch["x"]) - batch["y"]).square().mean()


def batches(count=8):
    generator = torch.Generator().manual_seed(4)

    def random(width):
        return torch.randn(8, width, generator=generator)

    return [{"x": random(4), "y": random(3)} for _ in range(count)]


@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("joined", [1, 2])
def test_an_optimizer_with_clipping_and_a_scheduler_equals_torchs(kind, settings, joined):
    """With and without accumulation."""
    module, given = network(), batches(8 * joined)
    steps = [given[i : i + 2] for i in range(0, 16, 2)] if joined > 1 else given
    optimizer = kind(module.parameters(), lr=0.01, **settings)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    update = clipped(module, optimizer, 0.5)
    assert_equal(module, steps, optimizer=optimizer, update=update, loss=loss, after=scheduler.step)


def test_groups_have_their_own_settings():
    module = network()
    first, last = module[0], module[2]
    groups = [
        {"params": first.parameters(), "lr": 0.1, "weight_decay": 0.0},
        {"params": [last.weight], "betas": (0.8, 0.9)},
    ]
    optimizer = optim.AdamW(groups, lr=0.01, weight_decay=0.3)
    training = assert_equal(module, batches(), optimizer=optimizer, loss=loss)
    assert "2.bias/exp_avg" not in training.model.specs  # it is in no group


def test_state_of_earlier_steps_is_continued():
    module, given = network(), batches()
    optimizer = optim.AdamW(module.parameters(), lr=0.01)
    for batch in given:
        optimizer.zero_grad()
        loss(module, batch).backward()
        optimizer.step()
    assert_equal(module, given, optimizer=optimizer, loss=loss)


REFUSED = {
    "first step": (optim.SGD, {"momentum": 0.9, "dampening": 0.5}, "dampening"),
    "closure": (optim.LBFGS, {}, "LBFGS"),
    "sparse": (optim.SparseAdam, {}, "SparseAdam"),
}


@pytest.mark.parametrize(("kind", "settings", "fact"), REFUSED.values(), ids=REFUSED)
def test_optimizers_that_cannot_be_traced_are_refused(kind, settings, fact):
    module = network()
    with raises(UnsupportedOpError, fact):
        train(module, batches(1), kind(module.parameters(), **settings), loss=loss)


def test_other_settings_must_not_change():
    module = network()
    optimizer = optim.SGD(module.parameters(), lr=0.01, momentum=0.9)

    def change():
        optimizer.param_groups[0]["momentum"] = 0.5

    with raises(ConfigError, "momentum", 0.5, 0.9):
        train(module, batches(), optimizer, loss=loss, after=change)


def test_groups_must_not_change():
    module = network()
    optimizer = optim.SGD(module[0].parameters(), lr=0.01)

    def add():
        optimizer.add_param_group({"params": module[2].parameters()})

    with raises(ConfigError, "optimizer", "groups"):
        train(module, batches(), optimizer, loss=loss, after=add)
    with raises(ConfigError, "requires_grad"):
        optimizer = optim.SGD(module.parameters(), lr=0.01)
        train(
            module, batches(), optimizer, loss=loss, after=lambda: module[0].requires_grad_(False)
        )


def by_value(module):
    nn.utils.clip_grad_value_(module.parameters(), 0.01)


def by_inf_norm(module):
    nn.utils.clip_grad_norm_(module.parameters(), 0.1, norm_type=float("inf"), foreach=False)


def noisy_first_layer(module):
    module[0].weight.grad.mul_(0.5)
    module[2].bias.grad = torch.zeros_like(module[2].bias)


@pytest.mark.parametrize("change", [by_value, by_inf_norm, noisy_first_layer])
def test_gradients_are_changed_before_the_step(change):
    module = network()
    optimizer = optim.AdamW(module.parameters(), lr=0.01)

    def update():
        change(module)
        optimizer.step()

    assert_equal(module, batches(), optimizer=optimizer, update=update, loss=loss)


# Averages of weights.


AVERAGES = {
    "SWA": {},
    "EMA": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "EMA of one": {"avg_fn": swa_utils.get_ema_avg_fn(0.3)},
    "SWA of many": {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()},
}


@pytest.mark.parametrize("settings", AVERAGES.values(), ids=AVERAGES)
def test_averaged_weights_equal_torchs(settings):
    module = nn.Sequential(nn.BatchNorm1d(4), network())
    module[1][0].bias.requires_grad_(False)
    optimizer = optim.AdamW(module.parameters(), lr=0.1)
    averaged = [swa_utils.AveragedModel(module, **settings) for _ in range(2)]

    def update():
        averaged[0].update_parameters(module)
        optimizer.step()
        averaged[1].update_parameters(module)

    _, training = train(module, batches(), optimizer, update, loss)
    expected = [copy.deepcopy(each.state_dict()) for each in averaged]
    training.copy_back()
    for before, after in zip(expected, averaged):
        torch.testing.assert_close(after.state_dict(), before, rtol=1e-4, atol=1e-5)


def averaging(make):
    """A module, and an update that averages what `make` returns."""
    module = nn.Sequential(network(), nn.BatchNorm1d(3))
    averaged = make(module)
    optimizer = optim.SGD(module.parameters(), lr=0.1)

    def update():
        optimizer.step()
        averaged.update_parameters(module)

    return module, optimizer, update


def changing_others():
    module, copy_ = network(), network()
    optimizer = optim.SGD(module.parameters(), lr=0.1)

    def update():
        optimizer.step()
        with torch.no_grad():
            for mine, own in zip(copy_.parameters(), module.parameters()):
                mine.lerp_(own, 0.1)

    return module, optimizer, update


def reading_the_scale():
    module, scaler = network(), torch.amp.GradScaler("cpu")
    optimizer = optim.SGD(module.parameters(), lr=0.1)

    def update():
        scaler.step(optimizer)
        scaler.get_scale()

    return module, optimizer, update


def following(act):
    """An update that calls a function after the step."""
    module = network()
    optimizer = optim.SGD(module.parameters(), lr=0.1)

    def update():
        optimizer.step()
        act(module, optimizer)

    return module, optimizer, update


def lowering_the_rate(module, optimizer):
    optimizer.param_groups[0]["lr"] *= 0.9


SEEN = []
REFUSED_UPDATES = {
    "rate in place": (lambda: following(lowering_the_rate), ["lr in group 0", "scheduler"]),
    "kept number": (
        lambda: following(lambda m, _: SEEN.append(next(m.parameters()).grad.sum().item())),
        ["SEEN", "runs once"],
    ),
    "numpy": (
        lambda: following(lambda m, _: next(m.parameters()).grad.numpy()),
        ["numpy()", "test_update.py"],
    ),
    "other model": (
        lambda: averaging(lambda m: swa_utils.AveragedModel(network()[0])),
        ["Averaged"],
    ),
    "buffers": (
        lambda: averaging(lambda m: swa_utils.AveragedModel(m, use_buffers=True)),
        ["use_buffers"],
    ),
    "other tensors": (changing_others, ["SGD"]),
    "scale": (reading_the_scale, ["get_scale"]),
}


@pytest.mark.parametrize(("make", "facts"), REFUSED_UPDATES.values(), ids=REFUSED_UPDATES)
def test_updates_that_cannot_be_traced_are_refused(make, facts):
    module, optimizer, update = make()
    with raises((ConfigError, UnsupportedOpError), *facts):
        train(module, batches(1), optimizer, update, loss=loss)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_grad_scaler_skips_steps_that_overflow(clip):
    module = network()
    twin = copy.deepcopy(module)

    def made(model):
        optimizer = optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        scaler = torch.amp.GradScaler("cpu", 2.0**80, growth_factor=4.0, growth_interval=3)

        def update():
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()

        return optimizer, scaler, update

    given = batches(10)
    for index in (1, 6, 7):
        given[index]["y"] *= 1e15
    optimizer, scaler, update = made(module)
    training = TorchTraining(TorchModel(module, given[0], optimizer, loss, update))
    theirs, other, step = made(twin)
    for batch in given:
        found = training.step(batch)["loss"]
        theirs.zero_grad()
        expected = loss(twin, batch)
        other.scale(expected).backward()
        step()
        assert found == pytest.approx(float(expected), rel=1e-5)
        training.copy_back()
        assert scaler.state_dict() == other.state_dict()
    assert scaler.get_scale() == 2.0**79
    torch.testing.assert_close(module.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)
    assert optimizer.state[module[0].weight]["step"] == 7


def test_a_scaled_loss_is_refused():
    scaler, module = torch.amp.GradScaler("cpu"), network()
    with raises(UnsupportedOpError, "GradScaler.scale"):
        train(module, batches(1), loss=lambda m, batch: scaler.scale(loss(m, batch)))
