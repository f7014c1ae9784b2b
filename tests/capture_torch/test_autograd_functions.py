"""Custom autograd functions: their own backward, against PyTorch, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.settings import TrainingSettings
from cerebras_tf.torch_step.training import TorchTraining
from tests.capture_torch.test_gradients import images, model
from tests.messages import raises
from tests.torch_step.eager import assert_equal, train


class Sign(Function):
    """A straight-through estimator, whose gradient passes where |x| < 1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1)


sign = Sign.apply  # looked up before the capture, as many modules do


class Reversal(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.factor, None


class Linear(Function):
    """PyTorch's tutorial."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        return x.mm(weight.t()) + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight, bias = ctx.saved_tensors
        found = [None, None, None]
        if ctx.needs_input_grad[0]:
            found[0] = gradient.mm(weight) * 0.5
        if ctx.needs_input_grad[1]:
            found[1] = gradient.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            found[2] = gradient.sum(0)
        return tuple(found)


class Separate(Function):
    """setup_context; two outputs, and one that has no gradient; a constant gradient."""

    @staticmethod
    def forward(x, y):
        return x.exp(), (x * y).sum(0), (x > 0).long(), x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[0])
        ctx.mark_non_differentiable(output[2], output[3])

    @staticmethod
    def backward(ctx, first, second, *_):
        x, y, exp = ctx.saved_tensors
        return first * exp + second * y, torch.full_like(y, 0.25)


class Scaled(Function):
    """Its gradient has to be summed to the shape of an input, and calls another function."""

    @staticmethod
    def forward(ctx, x, scale, offset):
        ctx.save_for_backward(x, scale)
        return x * scale + offset

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return Reversal.apply(gradient * scale, 2.0), (gradient * x).double(), None


def both(self, x):
    hidden = self.layer(x)
    exp, total, above, twice = Separate.apply(hidden, hidden * 0.5)
    return exp.mean() + (total * above).mean() + (twice * hidden).mean()


def partly(self, x):
    with torch.no_grad():
        target = sign(self.layer(x))
    return (
        (Scaled.apply(self.layer(x), self.scale.weight[0], self.other.weight) - target)
        .pow(2)
        .mean()
    )


def plain(function):
    return lambda self, x: (function(self.layer(x)) * torch.arange(4)).exp().mean()


def of_parameters(self, x):
    return Linear.apply(sign(x), self.layer.weight, self.layer.bias).square().mean()


FUNCTIONS = {
    "parameters": of_parameters,
    "straight-through": plain(sign),
    "gradient reversal": plain(lambda x: Reversal.apply(x.tanh(), 0.3) + x),
    "separate": both,
    "scaled": partly,
    "under no_grad": lambda self, x: (self.layer(x) - Sign.apply(x.detach())).square().mean(),
}


def made(function):
    return model(
        function, layer=nn.Linear(4, 4), scale=nn.Embedding(1, 4), other=nn.Embedding(1, 4)
    )


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_backward_of_a_function_equals_torchs(function):
    assert_equal(made(function), images())


def test_parameters_whose_gradient_is_none_are_not_trained():
    *_, training = train(made(partly), images())
    assert training.model.exported.trained == ["layer.weight", "layer.bias", "scale.weight"]


def test_functions_on_micro_batches_are_linear_example_by_example():
    found = []
    for count in (1, 2):
        training = micro_batches(made(plain(sign)), count)
        found.append([training.step(batch)["loss"] for batch in images(3, 5)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    with raises(UnsupportedOpError, "micro_batches"):
        micro_batches(made(of_parameters), 2).step(images(1)[0])


def micro_batches(module, count):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return TorchTraining(
        TorchModel(module, images(1)[0], optimizer), TrainingSettings(micro_batches=count)
    )


def refused(forward=lambda ctx, x: x * 2, backward=lambda ctx, gradient: gradient):
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    kind = type("Refused", (Function,), members)
    return lambda self, x: kind.apply(self.layer(x)).sum()


def dirty(ctx, x):
    ctx.mark_dirty(x)
    return x.mul_(2)


def differentiating(ctx, gradient):
    x = gradient.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(x.exp().sum(), x)[0]


REFUSED = {
    "dirty": (refused(dirty), ["mark_dirty"]),
    "autograd.grad": (refused(backward=differentiating), ["torch.autograd.grad"]),
    "no backward": (refused(backward=Function.backward), ["Refused"]),
    "too few": (refused(backward=lambda ctx, g: ()), ["Refused", "0 for 1 arguments"]),
    "branch": (refused(backward=lambda ctx, g: g if g.sum() > 0 else -g), ["Refused"]),
}


@pytest.mark.parametrize(("function", "facts"), REFUSED.values(), ids=REFUSED)
def test_functions_that_cannot_be_captured_are_refused(function, facts):
    with raises(UnsupportedOpError, *facts):
        train(made(function), images(1))
