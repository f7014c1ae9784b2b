"""Functions of PyTorch, losses and layers: results and gradients are PyTorch's.

All functions of a table are captured in one model. Each has its own parameter, so that its result
and its gradient are compared alone.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

import torch.nn.functional as F
from torch import nn

from cerebras_tf.capture_torch.capture import GRADIENT_OF, capture_step
from cerebras_tf.capture_torch.export import ExportedModel
from cerebras_tf.capture_torch.lowering import DTYPES, array_of
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import TensorType
from cerebras_tf.ir.program import RANDOM_STEP
from cerebras_tf.passes.differentiate import differentiate
from tests.graphs import run_plain

# Where derivatives jump, and where exp overflows.
POINTS = (-200.0, -90.0, -20.0, -6.0, -3.0, -1.0, -0.5, 0.0, 0.1, 0.5, 1.0, 3.0, 6.0, 20.5, 90.0)


class Functions(nn.Module):
    """Applies every function to its own parameter, scaled by the rows of a batch.

    Args:
        table: a function and the shape of its parameter, by name.
    """

    def __init__(self, table):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = {name: function for name, (function, _) in table.items()}
        self.layers = nn.ModuleList(f for f in self.table.values() if isinstance(f, nn.Module))
        self.x = nn.ParameterList()
        for _, shape in table.values():
            given = torch.tensor(POINTS) if shape is None else None
            drawn = torch.randn(shape or (), generator=generator)
            self.x.append(nn.Parameter(drawn if given is None else given))

    def forward(self, x):
        found = {}
        for (name, function), own in zip(self.table.items(), self.x):
            y = function(x.view(-1, *[1] * own.ndim) * own)
            found[name] = y[0] if isinstance(y, tuple) else y
        return found


def loss(module, batch):
    found = {name: y.float() for name, y in module(batch["x"]).items()}
    total = sum((y * y.detach().cos()).sum() for y in found.values())
    return {"loss": total, **found}


class Captured:
    """A captured model with its results and gradients, by the plain kernels."""

    def __init__(self, module, batch):
        self.exported = ExportedModel(module, batch, loss)
        self.names = ["loss", *self.exported.outputs]
        self.gradients = [GRADIENT_OF.format(name) for name in self.exported.trained]

    def step(self, batch, seed=0, number=0):
        types = {name: TensorType(DTYPES[x.dtype], tuple(x.shape)) for name, x in batch.items()}
        wanted = [*self.names, *self.gradients]
        step = capture_step(self.exported, None, types, wanted, seed, updates=False)
        differentiate(step.graph)
        given = {name: array_of(x) for name, x in batch.items()}
        given[RANDOM_STEP] = np.array(number, np.int64)
        arrays = [given[name] for name in step.features]
        arrays += [array_of(self.exported.tensors[name]) for name in step.variables]
        found = dict(zip((name for _, name in step.labels), run_plain(step.graph, arrays)))
        assert set(wanted) <= set(found)
        return found


def check(table, *batches):
    """Compares results and gradients on batches of different sizes."""
    torch.manual_seed(0)
    module = Functions(table)
    captured = Captured(module, {"x": torch.tensor(batches[0])})
    names = {f"x.{at}": name for at, name in enumerate(table)}
    faults = []
    for batch in ({"x": torch.tensor(rows)} for rows in batches):
        module.zero_grad()
        wanted = loss(module, batch)
        wanted["loss"].backward()
        pairs = [(name, name, wanted[name].detach()) for name in table]
        pairs += [
            (names.get(name, name), GRADIENT_OF.format(name), p.grad)
            for name, p in module.named_parameters()
            if p.grad is not None
        ]
        assert len(pairs) == len(table) + len(captured.gradients)
        found = captured.step(batch)
        for name, key, want in pairs:
            size = max(1.0, float(want.abs().max()))
            if not np.allclose(found[key], want.numpy(), rtol=1e-4, atol=1e-5 * size):
                faults.append((name, found[key], want))
    assert not faults


def labels(x):
    return torch.arange(len(x)) % 5


def target(x):
    return x.detach() * 0.5 + 0.1


def signs(x):
    return (x.detach() > 0).float()


def weighted_mean(losses, mask):
    return (losses * mask).sum() / mask.sum()


REDUCED = {
    "cross_entropy": lambda x, **k: F.cross_entropy(x, labels(x), **k),
    "nll_loss": lambda x, **k: F.nll_loss(F.log_softmax(x, -1), labels(x), **k),
    "mse_loss": lambda x, **k: F.mse_loss(x, target(x), **k),
    "l1_loss": lambda x, **k: F.l1_loss(x, target(x), **k),
    "smooth_l1_loss": lambda x, **k: F.smooth_l1_loss(x, target(x), beta=0.4, **k),
    "huber_loss": lambda x, **k: F.huber_loss(x, target(x), delta=0.3, **k),
    "binary_cross_entropy": lambda x, **k: F.binary_cross_entropy(x.sigmoid(), signs(x), **k),
    "with_logits": lambda x, **k: F.binary_cross_entropy_with_logits(x, signs(x), **k),
    "kl_div": lambda x, **k: F.kl_div(F.log_softmax(x, -1), F.softmax(target(x), -1), **k),
    "hinge": lambda x, **k: F.hinge_embedding_loss(x, signs(x) * 2 - 1, **k),
    "margin": lambda x, **k: F.margin_ranking_loss(x, x.flip(1), signs(x) * 2 - 1, **k),
    "triplet": lambda x, **k: F.triplet_margin_loss(x, x.flip(1), x * 2 + 0.1, **k),
    "cosine": lambda x, **k: F.cosine_embedding_loss(x, x.flip(1), torch.ones(len(x)), **k),
}
LOSSES = {
    f"{name} {reduction}": (lambda x, f=f, reduction=reduction: f(x, reduction=reduction), (5,))
    for name, f in REDUCED.items()
    for reduction in ("none", "mean", "sum")
}
LOSSES |= {
    "smoothed": (
        lambda x: F.cross_entropy(x, labels(x), reduction="none", label_smoothing=0.1),
        (5,),
    ),
    "rows of a sequence": (
        lambda x: F.cross_entropy(x.flatten(0, 1), labels(x.flatten(0, 1)), reduction="none").view(
            len(x), 4
        ),
        (4, 5),
    ),
    "channels": (lambda x: F.cross_entropy(x, (x[:, 0] > 0).long(), reduction="none"), (5, 4)),
    "masked mean": (
        lambda x: weighted_mean(F.cross_entropy(x, labels(x), reduction="none"), labels(x) > 0),
        (5,),
    ),
    "masked mean of nothing": (
        lambda x: (
            (F.mse_loss(x, target(x), reduction="none").mean(-1) * (labels(x) > 9)).sum()
            / (labels(x) > 9).sum().clamp(min=1)
        ),
        (5,),
    ),
    "len": (lambda x: F.cross_entropy(x, labels(x), reduction="sum") / len(x), (5,)),
    "share of len": (lambda x: (1.0 / len(x)) * x.square().sum(), (5,)),
    "root of len": (lambda x: x.square().sum() / len(x) ** 0.5, (5,)),
    "numel": (lambda x: x.square().sum() / x.numel(), (5,)),
}
NAMES = """celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu
relu6 rrelu selu silu softplus softshrink softsign tanhshrink"""
ACTIVATIONS = {name: (getattr(F, name), None) for name in NAMES.split()}
ACTIVATIONS |= {
    "elu alpha": (lambda x: F.elu(x, 1.5), None),
    "celu alpha": (lambda x: F.celu(x, 1.5), None),
    "hardtanh limits": (lambda x: F.hardtanh(x, -0.5, 3.0), None),
    "softplus beta": (lambda x: F.softplus(x, beta=2.0, threshold=5.0), None),
    "threshold": (lambda x: F.threshold(x, 0.1, -5.0), None),
    "in place": (lambda x: F.hardtanh(x * 1.0, inplace=True), None),
}


def assigned(x):
    x = x.clone()
    x[:, 0] = 0.5
    x[:, torch.tensor([1, 3])] = x[:, torch.tensor([0, 2])] * 2
    return x


PICK, IMAGE = torch.tensor([0, 2, 2]), (4, 6, 6)
ZEROS = torch.zeros(4, 6)
OTHERS = {
    name: (function, (4, 6))
    for name, function in {
        "glu": lambda x: F.glu(x, -1),
        "einsum": lambda x: torch.einsum("bij,bjk,bk->bi", x, x.mT, x[:, :, 0]),
        "einsum of diagonals": lambda x: torch.einsum("bii->bi", x @ x.mT),
        "baddbmm": lambda x: torch.baddbmm(x[:, :, :4], x, x.mT, beta=0.5, alpha=2.0),
        "cdist": lambda x: torch.cdist(x, x),
        "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(1), dim=-1),
        "normalize": lambda x: F.normalize(x * (torch.arange(4) > 1)[:, None], dim=-1),
        "norms": lambda x: x.norm(dim=-1) + x.norm(p=3, dim=-1) + x.norm(),
        "cumulative": lambda x: x.cumsum(1) + (x * (torch.arange(6) != 2)).cumprod(2),
        "topk": lambda x: x.topk(3, -1)[0] + x.topk(3, -1, largest=False)[1],
        "sort": lambda x: x.sort(1, descending=True)[0] + x.sort(-1)[0],
        "argsort": lambda x: x.gather(-1, x.argsort(-1)),
        "max": lambda x: x.max(-1)[0] + x.min(-1)[0] * x.argmin(-1) + x.median(-1)[0],
        "prod": lambda x: (x * (torch.arange(6) != 2)).prod(-1),
        "std": lambda x: x.std(-1) + (x * 0).std(-1) + torch.var_mean(x, -1)[1],
        "logsumexp": lambda x: x.logsumexp(-1) + (x * 200).logsumexp(-1),
        "scatter": lambda x: torch.zeros_like(x).scatter(
            2, torch.arange(6).flip(0).expand(x.shape), x
        ),
        "scatter_add": lambda x: torch.zeros_like(x).scatter_add(1, (x > 0).long(), x),
        "scatter_reduce": lambda x: x.scatter_reduce(1, (x > 0).long(), x * 2, "mean"),
        "scatter_reduce others": lambda x: (
            x.scatter_reduce(1, (x > 0).long(), x * 2, "mean", include_self=False)
            + x.scatter_reduce(1, (x > 0).long(), x * 3, "sum", include_self=False)
        ),
        "index_add": lambda x: torch.zeros_like(x).index_add(1, torch.tensor([0, 0, 2, 1]), x),
        "index_put": lambda x: torch.zeros(7, 4, 6).index_put(
            (torch.arange(len(x)) % 2,), x, accumulate=True
        ),
        "assigned": assigned,
        "index": lambda x: x[:, PICK] + x[:, PICK, torch.tensor([1, 2, 5])][..., None],
        "masks": lambda x: x.masked_fill(x > 0, float("-inf")).softmax(-1),
        "triangles": lambda x: x.triu() + x.tril(-1) * 2 + x.diagonal(dim1=1, dim2=2).sum(),
        "moved": lambda x: x.roll((1, -2), (1, 2)) + x.flip(1) + torch.rot90(x, 2, (1, 2)),
        "unfold": lambda x: x.unfold(2, 3, 2),
        "pads": lambda x: (
            F.pad(x, (1, 2), mode="reflect")
            + F.pad(x, (1, 2), mode="circular")
            + F.pad(F.pad(x, (-1, 2), value=3.0), (2, 0), mode="replicate")
        ),
        "constants": lambda x: (
            x @ torch.eye(6) * torch.linspace(0, 1, 6)
            + torch.outer(torch.arange(4.0), torch.arange(6.0))
        ),
        "rounded": lambda x: x.trunc() * x + x.frac() + x.fmod(0.7) + torch.arange(-3, 3) // 2,
        "logs": lambda x: x.exp2() + (x.abs() + 0.1).log2() + torch.logaddexp(x, x * 2),
        "adaptive_1d": lambda x: F.adaptive_avg_pool1d(x, 4),
        "pool_1d": lambda x: F.max_pool1d(x, 2) + F.avg_pool1d(x, 3, 2, 1),
        "interpolate_1d": lambda x: F.interpolate(x, size=9, mode="linear"),
        "conv1d groups": nn.Conv1d(4, 8, 3, groups=2),
        "conv1d circular": nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular", groups=4),
        "conv1d same": nn.Conv1d(4, 8, 3, padding="same", dilation=2),
        "conv_transpose1d": nn.ConvTranspose1d(4, 8, 3, stride=2),
        "instance_norm": nn.InstanceNorm1d(4, affine=True),
        "prelu": nn.PReLU(4),
    }.items()
}
OTHERS |= {
    name: (function, IMAGE)
    for name, function in {
        "conv2d groups": nn.Conv2d(4, 8, 3, groups=2, stride=2, padding=1),
        "conv_transpose2d": nn.ConvTranspose2d(4, 8, 3, 2, padding=1, output_padding=1),
        "conv_transpose2d groups": nn.ConvTranspose2d(4, 8, 4, 2, padding=1, groups=2),
        "group_norm": nn.GroupNorm(2, 4),
        "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, (4, None)),
        "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 3),
        "padded mean": lambda x: F.avg_pool2d(x, 3, 2, 1),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "bilinear": lambda x: F.interpolate(x, size=(9, 5), mode="bilinear"),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "image patches": lambda x: F.fold(F.unfold(x, 2, stride=2), (6, 6), 2, stride=2),
    }.items()
}


# The others are slow.
COMMON = """cross_entropy none
kl_div none
binary_cross_entropy none
smoothed
masked mean
len
elu
hardswish
normalize
topk
scatter_add
scatter_reduce others
assigned
conv1d groups
conv_transpose2d
bilinear""".splitlines()


def test_common_functions_equal_pytorchs():
    every = LOSSES | ACTIVATIONS | OTHERS
    check({name: every[name] for name in COMMON}, [1.0, -0.7, 0.6], [0.4, 1.3])


@pytest.mark.slow
@pytest.mark.parametrize(
    "table", [LOSSES, ACTIVATIONS, OTHERS], ids=["losses", "activations", "others"]
)
def test_functions_equal_pytorchs(table):
    check(table, [1.0, -0.7, 0.6], [0.4, 1.3])


EXACT = {
    "norm": lambda x: torch.linalg.vector_norm(x * torch.tensor([0.0, 1, 2]), -1, dim=-1),
    "int8": lambda x: x + (0 * x + torch.tensor([0.0, 3, -128])).to(torch.int8).sort()[0],
    "uint8": lambda x: x + (0 * x + torch.tensor([0.0, 3, 255])).to(torch.uint8).sort()[0],
    "bool": lambda x: x + (x > 0).sort()[0],
    "fmod": lambda x: (0 * x + torch.tensor([1.0, 5.3, -1])).fmod(0.1) + x.fmod(x * 0 + 0.7),
}


def test_remainders_and_integers_are_exact():
    check({name: (function, (3,)) for name, function in EXACT.items()}, [1.0, -0.7], [0.4])


def test_bitwise_operations_on_integers_are_refused():
    with pytest.raises(UnsupportedOpError, match="int64"):
        check({"xor": (lambda x: x + (x.long() ^ x.long()), (3,))}, [1.0, 2.0])


DRAWN = {
    "rand": (lambda x: torch.rand(len(x), 50), 0.5, 1 / 12),
    "rand_like": (lambda x: torch.rand_like(x), 0.5, 1 / 12),
    "randn": (lambda x: torch.randn(len(x), 50), 0.0, 1.0),
    "randn_like": (lambda x: torch.randn_like(x) * 2 + 1, 1.0, 4.0),
    "normal": (lambda x: torch.normal(x * 0 + 3, 0.5), 3.0, 0.25),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1.0, 16 / 12),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), 0.3, 0.21),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.3), 0.3, 0.21),
    "randint": (lambda x: torch.randint(2, 5, x.shape).float(), 3.0, 2 / 3),
    "randint_like": (lambda x: torch.randint_like(x, 3), 1.0, 2 / 3),
    "randperm": (lambda x: torch.randperm(50).float(), 24.5, (50**2 - 1) / 12),
    "dropout1d": (lambda x: F.dropout1d(torch.ones_like(x)[:, :, None], 0.5), 1.0, 1.0),
}


def test_random_numbers_have_pytorchs_distribution_and_are_repeatable():
    table = {name: (function, (50,)) for name, (function, *_) in DRAWN.items()}
    table["rrelu"] = (lambda x: F.rrelu(x, 0.25, 0.5, training=True), (50,))

    module = Functions(table)
    module.x[-1].data.fill_(-1.0)
    batch = {"x": torch.ones(40)}
    captured, again = Captured(module, batch), Captured(module, batch).step(batch)
    first, second = captured.step(batch), captured.step(batch, number=1)
    for name, (_, mean, variance) in DRAWN.items():
        drawn = first[name]
        assert (drawn == again[name]).all() and (drawn != second[name]).any(), name
        error = 5 * (variance / drawn.size) ** 0.5
        if name == "randperm":
            assert sorted(drawn) == list(range(50))
        assert abs(drawn.mean() - mean) < error, name
        assert abs(drawn.var() - variance) < 0.25 * variance, name
    slopes = -first["rrelu"]
    assert 0.25 <= slopes.min() < 0.3 and 0.45 < slopes.max() <= 0.5


def test_a_loss_of_exec_is_captured_for_batches_of_any_size():
    names = {}
    exec("def loss(module, batch):\n    return module(batch['x']).sum() / len(batch['x'])", names)
    exported = ExportedModel(nn.Linear(3, 1), {"x": torch.ones(2, 3)}, names["loss"])
    exported.check_sizes({"x": (5, 3)})
