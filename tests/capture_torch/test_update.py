"""Optimizers, traced as the user wrote them, against PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from torch import nn, optim

from cerebras_tf.errors import ConfigError, UnsupportedOpError
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
def test_an_optimizer_with_clipping_and_a_scheduler_equals_torchs(kind, settings):
    module = network()
    optimizer = kind(module.parameters(), lr=0.01, **settings)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    update = clipped(module, optimizer, 0.5)
    assert_equal(
        module, batches(), optimizer=optimizer, update=update, loss=loss, after=scheduler.step
    )


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
    "factored state": (optim.Adafactor, {}, "Adafactor"),
    "closure": (optim.LBFGS, {}, "LBFGS"),
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
