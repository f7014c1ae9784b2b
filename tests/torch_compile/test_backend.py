"""torch.compile(model, backend="cerebras") against PyTorch eager."""

from __future__ import annotations

import copy
import gc
import re
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import cerebras_tf.torch_compile  # noqa: F401  # registers the backend
from cerebras_tf.errors import DataError
from cerebras_tf.torch_compile import programs
from cerebras_tf.torch_compile.graph import CapturedGraph
from tests.messages import names, raises
from tests.torch_step.models import NAMES, make

LOSS, GRADIENT = 1e-5, 1e-5


@pytest.fixture(autouse=True)
def _without_caches():
    torch._dynamo.reset()
    gc.collect()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torch.compile, backend cerebras")
        yield


def compiled(module, **settings):
    return torch.compile(module, backend="cerebras", **settings)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that were captured."""
    found = []
    init = CapturedGraph.__init__

    def recorded(self, module):
        init(self, module)
        found.append(self)

    monkeypatch.setattr(CapturedGraph, "__init__", recorded)
    return found


class Model(nn.Module):
    """A model whose forward is a function of itself and its arguments."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args):
        return self.function(self, *args)


def linear(function, inputs=4, outputs=4, **layers):
    return Model(function, layer=nn.Linear(inputs, outputs), **layers)


def images(count=3, rows=6):
    return [torch.randn(rows, 4) for _ in range(count)]


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters()}


def assert_trains_like_eager(module, batches, **settings):
    """Trains both ways, with clipping; compares losses, gradients and buffers."""
    # Adam would turn the rounding errors of biases before a normalization into steps.
    kind = torch.optim.SGD if list(module.buffers()) else torch.optim.AdamW
    twin = copy.deepcopy(module)
    ours = compiled(twin, **settings)
    pairs = [(module, module), (ours, twin)]
    optimizers = [kind(plain.parameters(), lr=1e-3) for _, plain in pairs]
    for batch in batches:
        losses = []
        for (model, plain), optimizer in zip(pairs, optimizers):
            optimizer.zero_grad()
            loss = model(**batch) if isinstance(batch, dict) else model(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            losses.append(loss.detach())
        assert_same_gradients(module, twin)
        torch.testing.assert_close(losses[1], losses[0], rtol=LOSS, atol=LOSS)
        for optimizer in optimizers:
            optimizer.step()
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(twin.get_buffer(name), buffer, rtol=1e-5, atol=1e-6, msg=name)


def assert_same_gradients(expected, found):
    wanted, given = gradients(expected), gradients(found)
    assert {n for n, g in wanted.items() if g is None} == {n for n, g in given.items() if g is None}
    largest = max(float(g.abs().max()) for g in wanted.values() if g is not None)
    for name, gradient in wanted.items():
        if gradient is not None:
            assert given[name].dtype == gradient.dtype
            gap = float((given[name] - gradient).abs().max())
            assert gap <= GRADIENT * max(largest, 1e-3), name


@pytest.mark.parametrize("name", NAMES)
def test_models_train_like_eager(name, graphs):
    module, batch = make(name)
    assert_trains_like_eager(module, [batch() for _ in range(4)])
    assert graphs


def shared_twice(self, x):
    return (self.layer(self.layer(x)) - self.layer(2 * x)).square().mean()


def under_no_grad(self, x):
    with torch.no_grad():
        target = self.layer(x).tanh()
        first, _ = self.layer(x).chunk(2, 1)
    return (self.layer(x) - target).square().mean() + (first * self.layer(x)[:, :2]).mean()


def checkpointed(self, x):
    return checkpoint(self.layer, x, use_reentrant=False).square().mean()


def in_place(self, x):
    y = self.layer(x).square()
    y.add_(1.0).mul_(2.0)
    y[0] = 0.5
    return y.mean()


def broken(self, x):
    hidden = self.layer(x).tanh()
    torch._dynamo.graph_break()
    return self.layer(hidden).square().mean()


def branch(self, x):
    return self.layer(x).mean() if x.sum() > 0 else self.layer(x).exp().mean()


def frozen():
    module = linear(lambda self, x: self.last(self.layer(x)).square().mean(), last=nn.Linear(4, 2))
    module.layer.weight.requires_grad_(False)
    return module


def normalized():
    return linear(lambda self, x: self.norm(self.layer(x)).exp().mean(), norm=nn.BatchNorm1d(4))


FUNCTIONS = {
    "a layer used twice": lambda: linear(shared_twice),
    "no_grad": lambda: linear(under_no_grad),
    "detach": lambda: linear(lambda self, x: (self.layer(x) * self.layer(x).detach()).mean()),
    "checkpoint": lambda: linear(checkpointed),
    "in place": lambda: linear(in_place),
    "graph break": lambda: linear(broken),
    "branch on data": lambda: linear(branch),
    "frozen": frozen,
    "BatchNorm": normalized,
    "BatchNorm in eval": lambda: normalized().eval(),
    "unused": lambda: linear(lambda self, x: self.layer(x).mean(), other=nn.Linear(2, 2)),
    "only detached": lambda: linear(
        lambda self, x: self.layer(x).mean() + self.other(x).detach().mean(), other=nn.Linear(4, 4)
    ),
}


@pytest.mark.parametrize("make_module", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_train_like_eager(make_module, graphs):
    assert_trains_like_eager(make_module(), images())
    assert graphs


def test_one_program_serves_all_batch_sizes(graphs, monkeypatch):
    made = []
    compile_step = programs.compile_step
    monkeypatch.setattr(
        programs, "compile_step", lambda *args: made.append(args) or compile_step(*args)
    )
    module, batch = make("gpt2")
    batches = []
    for rows, length in ((2, 32), (3, 17), (7, 64), (4, 8), (5, 33)):
        tokens = torch.randint(0, 211, (rows, length))
        batches.append({"input_ids": tokens, "labels": tokens.roll(1, 1)})
    assert_trains_like_eager(module, batches, dynamic=True)
    assert len(graphs) == len(made) == 1


def test_changed_sizes_are_compiled_once_more(graphs):
    module = linear(lambda self, x: self.layer(x).square().mean() * x.shape[0])
    assert_trains_like_eager(module, [torch.randn(rows, 4) for rows in (3, 5, 2, 7, 11)])
    assert len(graphs) == 2


def test_a_graph_runs_several_times_before_its_backward_passes():
    module = linear(lambda self, x: self.layer(x).tanh())
    twin = copy.deepcopy(module)
    for model in (module, compiled(twin)):
        outputs = [model(torch.full((3, 4), float(i))) for i in range(3)]
        (outputs[0] * outputs[1]).sum().backward()
        outputs[2].sum().backward()
    assert_same_gradients(module, twin)


def test_a_second_backward_pass_computes_the_same():
    module = linear(lambda self, x: F.dropout(self.layer(x), 0.5).square().mean())
    loss = compiled(module)(torch.randn(6, 4))
    loss.backward(retain_graph=True)
    first = module.layer.weight.grad.clone()
    (loss * 3).backward(retain_graph=True)
    torch.testing.assert_close(module.layer.weight.grad, 4 * first)
    with torch.no_grad():
        module.layer.weight.add_(1.0)
    with raises(DataError, "input 0"):
        loss.backward()


def test_a_graph_between_breaks_may_compute_nothing():
    def function(self, x):
        rows = self.layer.weight.repeat_interleave(torch.tensor([1, 2, 0, 3]), 0)
        return x @ rows.T

    module = linear(function)
    x = torch.arange(8.0).view(2, 4)
    torch.testing.assert_close(compiled(module)(x), module(x))


def test_outputs_that_have_no_cotangent():
    """Like a language model that returns logits and loss, of which only the loss is used."""

    def function(self, x):
        logits = self.layer(x)
        return logits, logits.square().mean(), logits.argmax(1), self.layer(x).sum(1)

    module = linear(function)
    twin = copy.deepcopy(module)
    ours = compiled(twin)
    for used in ((1,), (0, 1), (1, 3), (0,), (1,)):
        for model, plain in ((module, module), (ours, twin)):
            plain.zero_grad()
            outputs = model(torch.arange(24.0).view(6, 4) / 10)
            sum(outputs[at].sum() * (at + 2) for at in used).backward()
        assert_same_gradients(module, twin)
        assert outputs[2].dtype == torch.int64 and not outputs[2].requires_grad


def test_dropout_follows_torchs_generator():
    module = linear(lambda self, x: self.drop(self.layer(x)), drop=nn.Dropout(0.25))
    model, x = compiled(module), torch.ones(512, 4)

    def run(seed):
        torch.manual_seed(seed)
        return model(x).detach(), model(x).detach()

    (first, second), again, other = run(1), run(1)[0], run(2)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, second) and not torch.equal(first, other)
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.04
    module.eval()
    torch.testing.assert_close(model(x), module.layer(x), rtol=1e-5, atol=1e-6)


def test_the_backward_pass_has_the_mask_of_the_forward_pass():
    module = linear(lambda self, x: F.dropout(x * self.layer.weight[0], 0.5))
    y = compiled(module)(torch.ones(64, 4))
    mask = (y.detach() != 0).float() * 2
    y.sum().backward()
    torch.testing.assert_close(module.layer.weight.grad[0], mask.sum(0))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_inference_needs_no_gradients(context, graphs):
    module, batch = make("hf_gpt2")
    module.eval()
    model, given = compiled(module), batch()
    with context():
        found = model(**given)
        assert not found.requires_grad
        torch.testing.assert_close(found, module(**given), rtol=1e-5, atol=1e-5)
        model(**given)
    assert graphs


def test_gradients_of_inputs_are_computed():
    x = torch.randn(6, 4, requires_grad=True)
    module = linear(lambda self, x: self.layer(x).square().sum())
    (found,) = torch.autograd.grad(compiled(module)(x), x)
    (expected,) = torch.autograd.grad(module(x), x)
    torch.testing.assert_close(found, expected)


def test_micro_batches_accumulate():
    module, batch = make("gpt2")
    twin = copy.deepcopy(module)
    batches = [batch() for _ in range(3)]
    for model in (module, compiled(twin)):
        for given in batches:
            (model(**given) / 3).backward()
    assert_same_gradients(module, twin)


def test_inputs_that_change_in_place():
    def function(self, x, total):
        y = self.layer(x)
        total.add_(1.0)
        total += x.sum()
        return y.square().mean(), total

    module = linear(function)
    twin, x = copy.deepcopy(module), torch.randn(6, 4)
    totals = [torch.zeros(2), torch.zeros(2)]
    for model, total in zip((module, compiled(twin)), totals):
        for _ in range(3):
            loss, returned = model(x, total)
            assert returned is total
            loss.backward()
    assert_same_gradients(module, twin)
    torch.testing.assert_close(*totals)
    assert (totals[0] != 0).all()


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_rounds_products_to_bfloat16(inside, graphs):
    def function(self, x):
        with torch.autocast(
            "cpu", torch.bfloat16, enabled=inside or torch.is_autocast_enabled("cpu")
        ):
            hidden = self.layer(x)
        return hidden, (self.last(hidden.float()) if inside else self.last(hidden)).square().mean()

    module = linear(function, 256, 512, last=nn.Linear(512, 64))
    twin, x = copy.deepcopy(module), torch.randn(64, 256)
    results = []
    for model in (module, compiled(twin)):
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            hidden, loss = model(x)
        loss.backward()
        results.append((hidden, loss.detach()))
    (hidden, loss), (ours, our_loss) = results
    assert ours.dtype == torch.bfloat16 and our_loss.dtype == loss.dtype
    torch.testing.assert_close(ours, hidden, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(our_loss, loss, rtol=1e-2, atol=1e-2)
    wanted, given = gradients(module), gradients(twin)
    for name, gradient in wanted.items():
        assert given[name].dtype == torch.float32
        torch.testing.assert_close(given[name], gradient, rtol=5e-2, atol=5e-3)
    (graph,) = graphs
    assert graph.precision == "bfloat16" and len(graph.keep_float32) == int(inside)


def test_a_model_in_bfloat16():
    module = linear(lambda self, x: self.layer(x).square().mean(), 64, 64).bfloat16()
    twin, x = copy.deepcopy(module), torch.randn(64, 64).bfloat16()
    for model in (module, compiled(twin)):
        model(x).backward()
    for name, gradient in gradients(module).items():
        found = gradients(twin)[name]
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, gradient, rtol=5e-2, atol=1e-3)


def test_python_floats_are_part_of_the_graph():
    module = linear(lambda self, x, p: F.dropout(self.layer(x), p, False).mean() * p)
    model, x = compiled(module, dynamic=True), torch.randn(6, 4)
    for p in (0.1, 0.2, 0.3, 0.1):
        torch.testing.assert_close(model(x, p), module(x, p))


class Doubled(torch.autograd.Function):
    """Returns its operand, and doubles its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def changed_gradient(self, x):
    hidden = self.layer(x)
    hidden.mul_(2.0)
    with torch.no_grad():
        hidden.mul_(3.0)
    return hidden.mean()


FALLBACKS = {
    "no rule": (lambda self, x: torch.fft.rfft(self.layer(x)).abs().mean(), ["fft_r2c"]),
    "autograd function": (lambda self, x: Doubled.apply(self.layer(x)).mean(), ["Doubled"]),
    "view": (lambda self, x: (self.layer(x).mean(), x.view(2, 12)), ["view"]),
    "in place without gradient": (changed_gradient, ["no_grad", "mul_(3.0)"]),
    "argument": (
        lambda self, x: F.max_pool2d(self.layer(x)[None], 2, ceil_mode=True).mean(),
        ["ceil_mode"],
    ),
}


@pytest.mark.parametrize(("function", "facts"), FALLBACKS.values(), ids=FALLBACKS)
def test_what_cannot_be_captured_runs_eagerly_with_a_warning(function, facts):
    module = linear(function)
    twin, x = copy.deepcopy(module), torch.rand(6, 4)

    def loss(model):
        found = model(x)
        return found[0] if isinstance(found, tuple) else found

    model = compiled(twin)
    with pytest.warns(UserWarning, match="eagerly") as caught:
        loss(model).backward()
    (message,) = [str(w.message) for w in caught if "eagerly" in str(w.message)]
    assert names(message, *facts)
    loss(module).backward()
    assert_same_gradients(module, twin)
    torch._dynamo.reset()
    with raises(Exception, *facts):
        loss(compiled(twin, options={"fallback": False}))


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"options": {"fallbak": True}}, ["fallbak", "fallback"]),
        ({"options": {"fallback": "no"}}, ["fallback", "no"]),
        ({"mode": "max-autotune"}, ["mode", "max-autotune"]),
    ],
)
def test_unknown_options_are_refused(settings, facts):
    with raises(Exception, "torch.compile", *facts):
        compiled(linear(lambda self, x: self.layer(x)), **settings)(torch.ones(2, 4))


def test_memory_of_activations_is_used_again_and_freed(monkeypatch):
    monkeypatch.setattr(programs, "_free", [])
    monkeypatch.setattr(programs, "_alive", set())
    module = linear(lambda self, x: self.layer(x).tanh())
    model, x = compiled(module), torch.randn(6, 4)
    for _ in range(2):
        kept = [model(x) for _ in range(3)]
        kept[0].sum().backward()
        del kept
        assert len(programs._free) == 3
    del model
    torch._dynamo.reset()
    gc.collect()
    assert not programs._free


def test_the_example_of_the_page_trains(capsys):
    page = Path(__file__).parents[2] / "docs/guides/pytorch-compile.md"
    (example,) = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.S)
    exec(compile(example, page.name, "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 8


OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {}),
    "Adam": (torch.optim.Adam, {"amsgrad": True}),
    "SGD": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "RAdam": (torch.optim.RAdam, {}),
    "ASGD": (torch.optim.ASGD, {}),
    "Rprop": (torch.optim.Rprop, {}),
    "Adafactor": (torch.optim.Adafactor, {}),
}


@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_schedules_scaling_and_averages_are_torchs_own(kind, settings):
    """Groups, clipping, a scheduler, loss scaling with overflows, accumulation, an average."""
    module = Model(
        lambda self, x: self.last(self.layer(x).tanh()).square().mean(),
        layer=nn.Linear(4, 4),
        last=nn.Linear(4, 2),
    )
    twin, given, results = copy.deepcopy(module), images(8), []
    for model, plain in ((module, module), (compiled(twin), twin)):
        groups = [{"params": plain.layer.parameters(), "lr": 0.02}, *plain.last.parameters()]
        groups[1:] = [{"params": groups[1:]}]
        optimizer = kind(groups, lr=0.01, **settings)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**125, growth_interval=9)
        average = torch.optim.swa_utils.AveragedModel(plain)
        for first, second in zip(given[::2], given[1::2]):
            for x in (first, second):
                scaler.scale(model(x) * 20).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
            average.update_parameters(plain)
        results.append((scaler.get_scale(), average.module.state_dict()))
    (scale, averaged), (our_scale, our_averaged) = results
    assert scale == our_scale and 2.0**121 < scale < 2.0**125
    for name, value in averaged.items():
        torch.testing.assert_close(our_averaged[name], value, rtol=1e-4, atol=1e-5)
