"""What changes a gradient and not the forward, or a buffer: against PyTorch, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from cerebras_tf.errors import ConfigError, DataError, UnsupportedOpError
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.training import TorchTraining
from tests.messages import raises
from tests.torch_step.eager import GRADIENT, LOSS, assert_equal, train

GENERATOR = torch.Generator().manual_seed(3)


class Model(nn.Module):
    """A model whose forward is a function of itself and the batch."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, **batch):
        return self.function(self, **batch)


def model(function, **layers):
    torch.manual_seed(0)
    return Model(function, **layers)


def images(count=3, seed=None):
    generator = GENERATOR if seed is None else torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(6, 4, generator=generator)} for _ in range(count)]


def labelled(classes=5, shape=(6,), count=3):
    found = []
    for _ in range(count):
        y = torch.randint(0, classes, shape, generator=GENERATOR)
        y.view(-1)[0] = -100
        x = torch.randn(*shape, 4, generator=GENERATOR)
        found.append({"x": x, "y": y})
    return found


@pytest.mark.parametrize("settings", [{}, {"scale_grad_by_freq": True}], ids=str)
def test_the_row_of_padding_idx_has_no_gradient(settings):
    module = model(
        lambda self, x: self.embed(x).square().mean(),
        embed=nn.Embedding(9, 4, padding_idx=2, **settings),
    )
    nn.init.normal_(module.embed.weight)
    generator = torch.Generator().manual_seed(5)
    rows = [{"x": torch.randint(0, 9, (4, 5), generator=generator)} for _ in range(3)]
    rows[0]["x"][0, :] = 2
    assert_equal(module, rows)


WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0])
LOSSES = {
    "ignore_index": {},
    "sum": {"reduction": "sum"},
    "label_smoothing": {"label_smoothing": 0.1},
    "class weights": {"weight": WEIGHTS},
    "weights and smoothing": {"weight": WEIGHTS, "label_smoothing": 0.2},
}


@pytest.mark.parametrize("settings", LOSSES.values(), ids=LOSSES)
def test_cross_entropy_equals_torchs(settings):
    def loss(self, x, y):
        return F.cross_entropy(self.layer(x), y, **settings)

    assert_equal(model(loss, layer=nn.Linear(4, 5)), labelled())


def shifted(x):
    """Rows one place down, with ones in the first."""
    result = x.new_zeros(x.shape)
    result[1:] = x[:-1]
    result[0] = 1.0
    return result


def masked(x, mask):
    """Rows with a number in place of masked elements."""
    x = x * 1.0
    x[mask] = 0.25
    return x


def ties(zeros):
    """Clamps of numbers that equal the limit."""
    limit = zeros.detach()
    numbers = zeros.clamp(min=0.0) + 2 * zeros.clamp_max(0.0) + 3 * zeros.clamp(0.0, 1.0)
    return numbers + 4 * zeros.clamp(min=limit) + 5 * torch.fmax(zeros, limit)


OTHER_LOSSES = {
    "dense": lambda logits, y: F.cross_entropy(logits, F.one_hot(y.clamp(0), 5).float()),
    "channels": lambda logits, y: F.cross_entropy(logits.view(2, 3, 5).mT, y.view(2, 3)),
    "nll": lambda logits, y: F.nll_loss(F.log_softmax(logits, -1), y, weight=WEIGHTS),
    "mse": lambda logits, y: F.mse_loss(logits[:, 0], y.float() / 100),
    "l1": lambda logits, y: F.l1_loss(logits[:, 0], y.float() / 100),
    "bce": lambda logits, y: F.binary_cross_entropy_with_logits(logits[:, 0], (y > 2).float()),
    "maximum": lambda logits, y: torch.maximum(logits, logits.detach() * 1.0).mean(),
    "amax": lambda logits, y: torch.cat([logits, logits], 1).amax(1).mean(),
    "ties": lambda logits, y: ties(logits - logits.detach()).sum(),
    "infinite xlogy": lambda logits, y: torch.xlogy(y[0] * 0, y[1] / 0.0).sum() + logits.sum(),
    "clamp": lambda logits, y: logits.clamp(-0.5, 0.5).square().mean(),
    "in place": lambda logits, y: logits.square().add_(1.0).mul_(logits).mean(),
    "view": lambda logits, y: logits.T.reshape(-1)[::2].exp().sum() / 10,
    "triangles": lambda logits, y: (logits.tril(-1) * 2 + logits.triu(1)).square().mean(),
    "index": lambda logits, y: logits[torch.arange(6), y.clamp(0)].square().mean(),
    "gather": lambda logits, y: logits.gather(0, y.clamp(0, 4).view(3, 2)).exp().mean(),
    "repeat": lambda logits, y: (logits.repeat_interleave(2, 1) * torch.arange(10)).mean(),
    "cat of nothing": lambda logits, y: torch.cat([logits.new_zeros(0), logits]).exp().mean(),
    "slices": lambda logits, y: (
        (logits[-99:, -2:] + logits[-99::2].sum() + logits[9:].sum()).square().mean()
    ),
    "mask": lambda logits, y: masked(logits.square(), logits > 0.3).mean(),
    "shift": lambda logits, y: (shifted(logits) * torch.arange(5)).square().mean(),
    "norms": lambda logits, y: F.group_norm(logits, 1).exp().mean() + logits.var(1).mean(),
}


@pytest.mark.parametrize("function", OTHER_LOSSES.values(), ids=OTHER_LOSSES)
def test_gradients_of_functions_equal_torchs(function):
    def loss(self, x, y):
        return function(self.layer(x), y)

    assert_equal(model(loss, layer=nn.Linear(4, 5)), labelled())


def tied():
    module = model(
        lambda self, x: F.cross_entropy(self.last(self.embed(x).tanh()).flatten(0, 1), x.flatten()),
        embed=nn.Embedding(9, 4, scale_grad_by_freq=True),
        last=nn.Linear(4, 9),
    )
    module.last.weight = module.embed.weight
    return module


def two_layers(layer):
    return model(
        lambda self, x: self.last(layer(x)).square().mean(), layer=layer, last=nn.Linear(3, 2)
    )


LAYERS = {
    "tied": tied,
    "weight_norm": lambda: two_layers(parametrizations.weight_norm(nn.Linear(4, 3))),
    "weight_norm 1": lambda: two_layers(parametrizations.weight_norm(nn.Linear(4, 3), dim=1)),
    "old weight_norm": lambda: two_layers(nn.utils.weight_norm(nn.Linear(4, 3))),
    "spectral_norm": lambda: two_layers(parametrizations.spectral_norm(nn.Linear(4, 3))),
    "spectral_norm in eval": lambda: two_layers(
        parametrizations.spectral_norm(nn.Linear(4, 3)).eval()
    ),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers_with_shared_or_computed_weights_equal_torchs(make, request):
    module = make()
    given = images(3, 5)
    generator = torch.Generator().manual_seed(5)
    if "tied" in request.node.name:
        given = [{"x": torch.randint(0, 9, (4, 5), generator=generator)} for _ in range(3)]
    assert_equal(module, given)


def test_detached_values_have_no_gradient():
    def loss(self, x):
        with torch.no_grad():
            target = self.layer(x).tanh()
        return (self.layer(x) - target * 0.5 + self.layer(x).detach()).square().mean()

    assert_equal(model(loss, layer=nn.Linear(4, 4)), images())


def test_frozen_and_unused_parameters_stay():
    module = model(
        lambda self, x: self.last(self.first(x)).square().mean(),
        first=nn.Linear(4, 4),
        last=nn.Linear(4, 2),
        unused=nn.Linear(2, 2),
    )
    module.first.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.5)
    _, training = train(module, images(), optimizer)
    assert training.model.exported.trained == ["first.bias", "last.weight", "last.bias"]
    assert not any("unused" in name and "/" in name for name in training.model.specs)


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("settings", [{}, {"affine": False, "track_running_stats": False}])
def test_batch_norm_equals_torchs(mode, settings):
    module = model(
        lambda self, x: self.norm(self.layer(x)).exp().mean(),
        layer=nn.Linear(4, 3),
        norm=nn.BatchNorm1d(3, **settings),
    )
    assert_equal(module.train(mode), images())


def test_a_tensor_that_forward_assigns_to_a_buffer_is_its_value():
    def loss(self, x):
        hidden = self.layer(x)
        self.mean = 0.9 * self.mean + hidden.detach().mean(0)
        return (hidden - self.mean).square().mean()

    module = model(loss, layer=nn.Linear(4, 3))
    module.register_buffer("mean", torch.ones(3))
    found, training = train(module, images(2))
    assert found.loss <= LOSS and found.gradient <= GRADIENT
    training.copy_back()
    torch.testing.assert_close(training.model.exported.tensors["mean"], module.mean)

    module.mean = torch.ones(1)
    with raises(UnsupportedOpError, "mean", "[3]", "[1]"):
        train(module, images(1))


def test_parameters_that_share_memory_are_refused():
    module = model(lambda self, x: self.last(self.layer(x)).mean())
    module.layer, module.last = nn.Linear(4, 4), nn.Linear(4, 4)
    both = torch.randn(4, 8)
    module.layer.weight.data, module.last.weight.data = both[:, :4], both[:, 4:]
    assert_equal(module, images(1))
    module.last.weight.data = both[:, 1:5]
    with raises(ConfigError, "layer.weight", "last.weight"):
        train(module, images(1))


NORMS = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "batch": nn.BatchNorm1d,
    "group": lambda size: nn.GroupNorm(2, size),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_norms_of_half_precision_with_float32_weights_are_not_rounded(norm):
    def loss(self, x):
        return self.norm(x.to(self.dtype)).float().square().sum()

    module = model(loss, norm=norm(4))
    module.dtype = torch.bfloat16
    batch = {"x": images(1)[0]["x"].bfloat16().float()}
    found = TorchTraining(TorchModel(module, batch, SGD(module.parameters()))).step(batch)
    module.dtype = torch.float32
    torch.testing.assert_close(torch.tensor(found["loss"]), module(**batch).detach())


def test_checkpointed_blocks_are_captured():
    def loss(self, x):
        hidden = checkpoint(self.layer, x, use_reentrant=False)
        return hidden.square().mean()

    assert_equal(model(loss, layer=nn.Linear(4, 4)), images())


def test_masked_attention_equals_torchs():
    def loss(self, x, mask):
        parts = self.layer(x).view(2, 3, 4, 2).transpose(1, 2)
        keys = parts[:, :2] * 1.5
        out = F.scaled_dot_product_attention(parts, keys, keys, mask[:, None], enable_gqa=True)
        return out.square().sum()

    mask = torch.ones(2, 3, 3, dtype=torch.bool).tril()
    mask[0, 1] = False  # a query that sees nothing
    batches = [{"x": torch.randn(2, 3, 4, generator=GENERATOR), "mask": mask} for _ in range(3)]
    assert_equal(model(loss, layer=nn.Linear(4, 8)), batches)


@pytest.mark.parametrize("causal", [False, True])
def test_a_trained_bias_of_attention_has_its_gradient(causal):
    def loss(self, x):
        parts = self.layer(x).view(2, 3, 2, 2).transpose(1, 2)
        bias = None if causal else self.bias.weight.view(1, 2, 3, 3)
        values = torch.cat([parts, parts], -1)  # wider than the keys
        out = F.scaled_dot_product_attention(parts, parts, values, bias, is_causal=causal)
        return out.square().sum() + self.bias.weight.sum()

    module = model(loss, layer=nn.Linear(4, 4), bias=nn.Embedding(2, 9))
    assert_equal(module, [{"x": batch["x"].view(2, 3, 4)} for batch in images()])


def hooked():
    module = model(lambda self, x: self.layer(x).mean(), layer=nn.Linear(4, 2))
    module.layer.register_full_backward_hook(lambda *args: None)
    return module


def embedding(**settings):
    layers = {"embed": nn.Embedding(9, 4, **settings), "layer": nn.Linear(4, 2)}
    return model(lambda self, x: self.layer(self.embed(x.abs().long())).mean(), **layers)


def differentiating(self, x):
    loss = self.layer(x).square().mean()
    (gradient,) = torch.autograd.grad(loss, self.layer.weight, create_graph=True)
    return loss + gradient.square().sum()


def linear(function):
    return model(function, layer=nn.Linear(4, 2))


REFUSED = {
    "sparse": (lambda: embedding(sparse=True), UnsupportedOpError, ["sparse"]),
    "max_norm": (
        lambda: embedding(max_norm=0.5),
        UnsupportedOpError,
        ["embedding_renorm", "embed"],
    ),
    "gradient": (lambda: linear(differentiating), UnsupportedOpError, ["torch.autograd.grad"]),
    "reentrant checkpoint": (
        lambda: linear(lambda self, x: checkpoint(self.layer, x, use_reentrant=True).mean()),
        UnsupportedOpError,
        ["CheckpointFunction", "use_reentrant"],
    ),
    "hook": (hooked, UnsupportedOpError, ["layer"]),
    "branch on data": (
        lambda: linear(lambda self, x: self.layer(x).mean() if x.sum() > 0 else x.mean()),
        UnsupportedOpError,
        ["data-dependent"],
    ),
    "ops without a rule": (
        lambda: linear(lambda self, x: torch.fft.rfft(self.layer(x)).abs().mean()),
        UnsupportedOpError,
        ["fft_r2c", "test_gradients.py", "Model", "pytorch-operations"],
    ),
    "loss of rows": (lambda: linear(lambda self, x: self.layer(x)), ConfigError, ["loss"]),
}


@pytest.mark.parametrize(("make", "kind", "facts"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_captured_is_refused(make, kind, facts):
    with raises(kind, *facts):
        train(make(), images(1))


def test_a_batch_of_another_shape_is_refused():
    module = linear(lambda self, x: self.layer(x).mean())
    with raises(DataError, "x", "[None, 4]", "[6, 3]"):
        train(module, [*images(1), {"x": torch.ones(6, 3)}])
