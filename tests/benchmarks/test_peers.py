"""The peers of `bench` are the zoo's models in PyTorch: as many parameters, a loss that falls."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.peers import Missing, _arrays, make_model, run_peer
from benchmarks.training import SMOKE
from benchmarks.turns import Turn

# Of the zoo's models at the smoke shape: 1 layer x 128, positions 32, vocabulary 257.
PARAMETERS = {
    "gpt2": 257 * 128 + 32 * 128 + 12 * 128**2 + 13 * 128 + 2 * 128,
    "bert": (257 + 32 + 2) * 128 + 12 * 128**2 + 13 * 128 + 2 * 128 + 128**2 + 128 + 2 * 128 + 2,
}


class Pipe:
    """Tells a side how many steps to make, then to end."""

    def __init__(self, *steps):
        self.sent, self._steps = [], list(steps)

    def send(self, message):
        self.sent.append(message)

    def recv(self):
        if not self._steps:
            raise EOFError
        return self._steps.pop(0)


@pytest.mark.parametrize("model", PARAMETERS)
def test_a_peer_has_the_parameters_of_the_zoos_model(model):
    shape = dataclasses.replace(SMOKE, model=model)
    made = make_model(shape)
    assert sum(item.numel() for item in made.parameters()) == PARAMETERS[model]


def test_bert_reads_no_padding():
    shape = dataclasses.replace(SMOKE, model="bert")
    ids, mask, labels = (torch.from_numpy(array) for array in _arrays(shape)[0])
    assert mask.any()
    model = make_model(shape)
    loss = model(ids, mask, labels)
    torch.testing.assert_close(model(torch.where(mask == 1, 7, ids), mask, labels), loss)
    assert model(torch.where(mask == 0, 7, ids), mask, labels) != loss


@pytest.mark.parametrize(("model", "norms"), [("gpt2", []), ("bert", [1.0, 1.0])])
def test_a_peer_clips_as_the_params_file_does(model, norms, monkeypatch):
    found = []
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda _, most: found.append(most))
    run_peer(Pipe(1), dataclasses.replace(SMOKE, model=model), "torch")
    assert found == norms


@pytest.mark.parametrize("side", ["torch", "torch bf16"])
def test_a_peer_makes_the_steps_that_it_is_told(side):
    pipe = Pipe(2, 10)
    run_peer(pipe, SMOKE, side)
    ready, first, second, third = pipe.sent
    assert ready == 0 and isinstance(first, Turn) and not first.step_s
    assert len(second.step_s) == 2 and len(third.step_s) == 10
    assert third.loss < first.loss and third.peak_bytes >= second.peak_bytes > 1e8
    assert third.first_step_s == second.first_step_s > 0


def test_a_model_that_a_peer_lacks_is_a_line():
    pipe = Pipe()
    run_peer(pipe, dataclasses.replace(SMOKE, model="gptj"), "torch")
    (missing,) = pipe.sent
    assert isinstance(missing, Missing) and "gptj" in missing.reason
