"""Trains a captured model next to PyTorch eager, and measures how they differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from cerebras_tf.capture_torch.capture import GRADIENT_OF
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.training import TorchTraining

LOSS, GRADIENT = 1e-5, 1e-5


class Differences(NamedTuple):
    """Largest differences: of losses, relative; of gradients, as parts of the largest gradient."""

    loss: float
    gradient: float


def clipped(module, optimizer, norm=1.0):
    """What a training loop does after `loss.backward()`."""

    def update():
        torch.nn.utils.clip_grad_norm_(module.parameters(), norm)
        optimizer.step()

    return update


def mean_loss(module, batch, loss=None):
    """The loss of a batch, or the mean over several."""
    parts = batch if isinstance(batch, list) else [batch]
    return sum(loss(module, part) if loss else module(**part) for part in parts) / len(parts)


def train(module, batches, optimizer=None, update=None, loss=None, after=lambda: None):
    """Trains on the batches, here and by eager on the same module.

    Args:
        batches: of one step each; a list of several is accumulated.
        after: is called after every step, for schedulers.

    Returns:
        The differences, and the training, whose weights are not copied to the module.
    """
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.01)
    update = update or optimizer.step
    first = batches[0][0] if isinstance(batches[0], list) else batches[0]
    model = TorchModel(module, first, optimizer, loss, update)
    trained = model.exported.trained
    training = TorchTraining(model, gradients=trained)
    worst = [0.0, 0.0]
    for batch in batches:
        found = training.step(batch)
        module.zero_grad()
        expected = mean_loss(module, batch, loss)
        expected.backward()
        parameters = dict(module.named_parameters())
        assert trained == [n for n, p in parameters.items() if p.grad is not None]
        largest = max(float(parameters[name].grad.abs().max()) for name in trained)
        for name in trained:
            gap = np.abs(found[GRADIENT_OF.format(name)] - parameters[name].grad.numpy()).max()
            worst[1] = max(worst[1], float(gap) / largest)
        value = float(expected.detach())
        worst[0] = max(worst[0], abs(found["loss"] - value) / max(abs(value), 1e-3))
        update()
        after()
    return Differences(*worst), training


def assert_equal(module, batches, **settings):
    """As train; checks the differences, and all parameters and buffers at the end."""
    found, training = train(module, batches, **settings)
    assert found.loss <= LOSS and found.gradient <= GRADIENT, found
    expected = {name: t.detach().clone() for name, t in training.model.exported.tensors.items()}
    training.copy_back()
    for name in training.model.exported.specs:
        actual = training.model.exported.tensors[name]
        torch.testing.assert_close(actual, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    return training
