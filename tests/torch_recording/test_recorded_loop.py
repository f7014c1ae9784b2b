"""Recorded loops against the same loops in eager PyTorch."""

from __future__ import annotations

import copy

import pytest

from cerebras_tf.errors import ConfigError, UnsupportedOpError
from tests.messages import raises

torch = pytest.importorskip("torch")

from cerebras_tf.torch_recording.recorded_loop import RecordedLoop


class Tagger(torch.nn.Module):
    """Tied embedding, an encoder layer with a mask, BatchNorm, dropout 0."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8, padding_idx=0)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, ids):
        hidden = self.layer(self.embed(ids), src_key_padding_mask=ids == 0)
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        return hidden @ self.embed.weight.T


def batches(count, rows=4):
    torch.manual_seed(1)
    ids = torch.randint(1, 20, (count, rows, 6))
    ids[:, :, 4:] = 0
    return [{"ids": each, "labels": each.roll(1, 1)} for each in ids]


def loss_of(model, batch):
    logits = model(batch["ids"])
    weights = (batch["ids"] != 0).float()
    with torch.no_grad():
        found = (logits.argmax(-1) == batch["labels"]).sum()
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), reduction="none"
    )
    return (each * weights.flatten()).sum() / weights.sum(), found


def train(model, data, recorded, counts=None):
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    shown = []

    def update():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    def show(loss, correct):
        shown.append((loss.item(), correct.item()))

    loop = RecordedLoop(model)
    for batch in loop.batches(data) if recorded else data:
        loss, correct = loss_of(model, batch)
        if counts is not None:
            if recorded:
                loop.track("counts", counts)
            counts.add_(correct)
        loss.backward()
        loop.train(optimizer, update) if recorded else update()
        optimizer.zero_grad()
        loop.at_end(show, loss.detach(), correct)
        if not recorded:
            schedule.step()
            continue
        with loop.paused():
            schedule.step()
    loop.copy_back()
    return shown, optimizer


def test_a_recorded_loop_trains_as_eager_does():
    eager = Tagger()
    model, data = copy.deepcopy(eager), [*batches(4), *batches(2, rows=3)]
    counts = [torch.zeros(()), torch.zeros(())]
    expected, old = train(eager, data, False, counts[0])
    found, new = train(model, data, True, counts[1])
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(counts[1], counts[0])
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    states = [opt.state_dict()["state"] for opt in (new, old)]
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-5)


def test_evaluation_returns_values_and_changes_tracked_tensors_only():
    model, data = Tagger().eval(), batches(2)
    before, seen = copy.deepcopy(model.state_dict()), torch.zeros((), dtype=torch.int64)
    loop, shown = RecordedLoop(model), []
    for batch in loop.batches(data):
        loop.track("seen", seen)
        _, correct = loss_of(model, batch)
        seen.add_(correct)
        logits = model(batch["ids"])
        loop.at_end(lambda *found: shown.append(found), logits.half(), logits.sum().bfloat16())
    loop.copy_back()
    assert seen == sum(loss_of(model, batch)[1] for batch in data)
    for (found, total), batch in zip(shown, data):
        logits = model(batch["ids"])
        torch.testing.assert_close(found, logits.half(), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(total, logits.sum().bfloat16())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def branches(loop, loss):
    return loss.item()


def accumulates(loop, loss):
    loss.backward()


def changes_a_constant(loop, loss):
    torch.zeros(1)
    OUTSIDE.add_(loss.detach())


OUTSIDE = torch.zeros(())


@pytest.mark.parametrize(
    ("misuse", "facts"),
    [
        (branches, ["value", "step closure"]),
        (accumulates, ["backward"]),
        (changes_a_constant, ["add_", "buffer"]),
    ],
)
def test_what_cannot_be_recorded_is_refused(misuse, facts):
    model = Tagger()
    loop = RecordedLoop(model)
    with raises(UnsupportedOpError, *facts):
        for batch in loop.batches(batches(2)):
            misuse(loop, loss_of(model, batch)[0])


class Reversal(torch.autograd.Function):
    """The identity, with a gradient of its own."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


class Reversed(Tagger):
    """Tagger with the function in its middle, once by its name and once under no_grad."""

    apply = staticmethod(Reversal.apply)

    def forward(self, ids):
        hidden = self.layer(self.apply(self.embed(ids), 0.5))
        with torch.no_grad():
            offset = self.apply(hidden, 2.0)
        hidden = self.norm((hidden + offset).transpose(1, 2)).transpose(1, 2)
        return hidden @ self.embed.weight.T


def test_custom_autograd_functions_keep_their_backward():
    eager = Reversed()
    model, data = copy.deepcopy(eager), batches(4)
    expected, found = train(eager, data, False)[0], train(model, data, True)[0]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)


def test_compiling_needs_an_iteration():
    model = Tagger()
    loop, (batch,) = RecordedLoop(model), batches(1)
    loss_of(model, loop.begin(batch))[0].backward()
    loop.train(torch.optim.SGD(model.parameters(), 0.1))
    loop.compile(validate_only=True)
    with raises(ConfigError, "compile", "none"):
        loop.compile()


def test_a_constant_of_all_iterations_can_be_kept():
    model, kept, shown = Tagger(), {}, []
    loop, data = RecordedLoop(model), batches(2)
    for batch in loop.batches(data):
        if not kept:
            kept["scale"] = loop.constant(torch.arange(6).float() * 2)
            with raises(UnsupportedOpError, "make_constant", "batch"):
                loop.constant(batch["ids"] * 2)
        loop.at_end(shown.append, batch["ids"] * kept["scale"])
    for found, batch in zip(shown, data):
        torch.testing.assert_close(found, batch["ids"] * torch.arange(6).float() * 2)
