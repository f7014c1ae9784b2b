"""The PyTorch API of release 2: the same loops on the backends CSX and CPU, which is eager."""

from __future__ import annotations

import copy
import importlib

import pytest

from cerebras_tf.errors import CheckpointError, ConfigError, UnsupportedOpError
from tests.messages import raises

torch = pytest.importorskip("torch")

import cerebras.pytorch as cstorch
from cerebras.pytorch import platform


@pytest.fixture(autouse=True)
def no_backend(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    platform._CURRENT.clear()
    cstorch.amp.use_bfloat16(False)


class Classifier(torch.nn.Module):
    """A loss, and metrics in evaluations."""

    dropout = 0.0

    def __init__(self):
        super().__init__()
        first, last = torch.nn.Linear(6, 16), torch.nn.Linear(16, 3)
        dropout = torch.nn.Dropout(self.dropout)
        norm, gelu = torch.nn.LayerNorm(16), torch.nn.GELU()
        self.layers = torch.nn.Sequential(first, norm, gelu, dropout, last)
        self.accuracy = cstorch.metrics.AccuracyMetric("accuracy")
        self.f1 = cstorch.metrics.FBetaScoreMetric(3, average_type="macro", name="f1")

    def forward(self, batch):
        inputs, labels = batch
        logits = self.layers(inputs)
        if not self.training:
            predictions = logits.argmax(-1)
            self.accuracy(labels=labels, predictions=predictions)
            self.f1(labels=labels, predictions=predictions)
        return torch.nn.functional.cross_entropy(logits, labels)


def make_model():
    torch.manual_seed(0)
    return Classifier()


def make_loader(rows=40, batch_size=8):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 6, generator=generator)
    labels = inputs[:, :3].argmax(-1)
    return torch.utils.data.DataLoader(
        list(zip(inputs, labels)), batch_size, shuffle=True, generator=generator
    )


def run(kind, steps=12, *, resume=None, folder=None, **options):
    """Trains as a script of the time does; returns losses and the model."""
    backend = cstorch.backend(kind, **options)
    with backend.device:
        model = make_model()
    compiled = cstorch.compile(model, backend)
    compiled.train()
    optimizer = cstorch.optim.configure_optimizer(
        "AdamW",
        cstorch.optim.configure_param_groups(model, {"weight_decay_rate": 0.1}),
        betas=(0.9, 0.99),
        correct_bias=True,
    )
    schedule = cstorch.optim.configure_lr_scheduler(
        optimizer,
        [
            {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.02}
            | {"steps": 4},
            {"scheduler": "CosineDecay", "initial_learning_rate": 0.02, "end_learning_rate": 0.001}
            | {"steps": 10},
        ],
    )
    loader = cstorch.utils.data.DataLoader(make_loader)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    if resume is not None:
        for name, state in cstorch.load(resume).items():
            parts[name].load_state_dict(state)
    shown = []

    @cstorch.trace
    def train(batch):
        loss = compiled(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.3)
        optimizer.step()
        schedule.step()
        return loss

    @cstorch.step_closure
    def show(loss, step):
        assert executor.profiler.rate() > 0
        assert executor.iteration == step
        assert executor.on_final_iteration == (step == steps)
        shown.append((step, loss.item()))

    @cstorch.checkpoint_closure
    def save(step):
        if folder is not None:
            state = {name: part.state_dict() for name, part in parts.items()}
            cstorch.save(state, folder / f"checkpoint_{step}.mdl")

    executor = cstorch.utils.data.DataExecutor(loader, num_steps=steps, checkpoint_steps=5)
    for step, batch in enumerate(executor, start=1):
        loss = train(batch)
        show(loss, step)
        save(step)
    return shown, model


def assert_close(found, expected):
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_a_loop_trains_on_the_wafer_as_on_the_cpu():
    expected, host = run("CPU")
    found, model = run("CSX")
    assert_close(found, expected)
    assert found[-1][1] < found[0][1]
    torch.testing.assert_close(model.state_dict(), host.state_dict(), rtol=1e-4, atol=1e-5)


def test_a_run_continues_from_a_checkpoint_with_the_next_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(Classifier, "dropout", 0.2)
    whole, model = run("CSX", 12, folder=tmp_path, max_checkpoints=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint_10.mdl",
        "checkpoint_12.mdl",
    ]
    rest, resumed = run("CSX", 2, resume=tmp_path / "checkpoint_10.mdl")
    assert [loss for _, loss in rest] == [loss for _, loss in whole[10:]]
    torch.testing.assert_close(resumed.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_programs_are_read_from_compile_dir(tmp_path, caplog):
    expected, _ = run("CSX", 2)
    for _ in range(2):
        found, _ = run("CSX", 2, compile_dir=str(tmp_path / "programs"))
        assert found == expected
    assert list((tmp_path / "programs").rglob("*.zip"))


@pytest.mark.parametrize("option", ["compile_only", "validate_only"])
def test_compiling_runs_no_step(option):
    found, model = run("CSX", None, **{option: True})
    assert found == []
    torch.testing.assert_close(model.state_dict(), make_model().state_dict(), rtol=0, atol=0)


def test_a_break_ends_the_last_iteration():
    backend = cstorch.backend("CSX")
    model = cstorch.compile(make_model(), backend)
    shown = []
    for batch in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(make_loader)):
        cstorch.step_closure(shown.append)(model(batch))
        break
    assert len(shown) == 1 and shown[0].item() > 0


@pytest.mark.parametrize("kind", ["CSX", "CPU"])
def test_evaluation_computes_metrics_over_all_batches(kind):
    backend = cstorch.backend(kind)
    model = cstorch.compile(make_model(), backend).eval()
    losses = []
    for batch in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(make_loader)):
        cstorch.step_closure(lambda loss: losses.append(loss.item()))(model(batch))
    found = cstorch.metrics.compute_all_metrics()
    plain, rows = make_model(), list(make_loader().dataset)
    inputs, labels = map(torch.stack, zip(*rows))
    logits = plain.layers(inputs)
    right = (logits.argmax(-1) == labels).float().mean().item()
    assert found["accuracy"] == pytest.approx(right)
    assert len(losses) == 5
    mean = torch.nn.functional.cross_entropy(logits, labels).item()
    assert sum(losses) / 5 == pytest.approx(mean, rel=1e-5)
    assert 0 < found["f1"] < 1


OPTIMIZERS = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"weight_decay_rate": 0.1, "amsgrad": True},
    "AdamW": {"beta2": 0.95, "epsilon": "1e-5", "correct_bias": False},
    "Adamax": {},
    "ASGD": {},
    "Lamb": {"weight_decay_rate": 0.01},
    "Lion": {"weight_decay_rate": 0.01},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "use_nesterov": True},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_on_the_wafer_as_on_the_cpu(name):
    found = {}
    for kind in ("CSX", "CPU"):
        backend = cstorch.backend(kind)
        model = cstorch.compile(make_model(), backend)
        optimizer = cstorch.optim.configure_optimizer(
            name.lower(), model.parameters(), learning_rate=0.01, **OPTIMIZERS[name]
        )
        assert isinstance(optimizer, cstorch.optim.Optimizer)
        losses = found[kind] = []
        loader = cstorch.utils.data.DataLoader(make_loader)
        for batch in cstorch.utils.data.DataExecutor(loader, num_steps=4):
            loss = model(batch)
            cstorch.amp.optimizer_step(loss, optimizer, max_gradient_value=0.5)
            cstorch.step_closure(lambda loss: losses.append(loss.item()))(loss)  # noqa: B023
    assert_close(found["CSX"], found["CPU"])


def steps_of(make, count=4):
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(3, 4))
    optimizer = make([parameter])
    for _ in range(count):
        parameter.grad = torch.randn(3, 4)
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam_is_that_of_pytorch(name, amsgrad):
    options = {"lr": 0.1, "eps": 1e-12, "weight_decay": 0.1, "amsgrad": amsgrad}
    own, theirs = getattr(cstorch.optim, name), getattr(torch.optim, name)
    found = steps_of(lambda p: own(p, **options), 1 if amsgrad else 4)
    expected = steps_of(lambda p: theirs(p, **options), 1 if amsgrad else 4)
    torch.testing.assert_close(found, expected)


def test_adafactor_is_that_of_transformers():
    theirs = pytest.importorskip("transformers.optimization").Adafactor
    options = {"lr": 0.1, "weight_decay": 0.1, "relative_step": False}
    found = steps_of(lambda p: cstorch.optim.Adafactor(p, **options))
    torch.testing.assert_close(found, steps_of(lambda p: theirs(p, **options)))


def test_lion_and_lamb_make_the_steps_of_their_papers():
    torch.manual_seed(0)
    before, gradient = torch.randn(3, 4), torch.randn(3, 4)
    lion = steps_of(lambda p: cstorch.optim.Lion(p, lr=0.1, weight_decay=0.2), 1)
    torch.testing.assert_close(lion, before * 0.98 - 0.1 * gradient.sign())
    lamb = steps_of(lambda p: cstorch.optim.Lamb(p, lr=0.1, weight_decay=0.2, eps=0.0), 1)
    change = 0.1 / 0.001**0.5 * gradient.sign() + 0.2 * before
    torch.testing.assert_close(lamb, before - 0.1 * change * (before.norm() / change.norm()))


def plain(name, **options):
    """Rates of PyTorch's scheduler."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=options.pop("lr", 1.0))
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **options)
    return rates(optimizer, scheduler)


def rates(optimizer, scheduler, count=12):
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def expected_rates(name):
    if name == "InverseSquareRootDecay":
        return [0.5 / max(step, 4) ** 0.5 for step in range(12)]
    if name == "InverseExponentialTimeDecay":
        return [0.5 / (1 + 0.1 * step**2 / 3) for step in range(12)]
    return {
        "Constant": lambda: [0.5] * 12,
        "Cosine": lambda: plain("CosineAnnealingLR", lr=0.5, T_max=5, eta_min=0.1)[:6] + [0.1] * 6,
        "CosineAnnealing": lambda: plain("CosineAnnealingLR", lr=0.5, T_max=20),
        "CosineAnnealingWarmRestarts": lambda: plain(
            "CosineAnnealingWarmRestarts", lr=0.5, T_0=3, T_mult=2
        ),
        "CyclicLR": lambda: plain(
            "CyclicLR",
            base_lr=0.1,
            max_lr=0.5,
            step_size_up=3,
            mode="triangular2",
            cycle_momentum=False,
        ),
        "Exponential": lambda: plain("ExponentialLR", lr=0.5, gamma=0.9),
        "Linear": lambda: [max(0.5 - 0.1 * step, 0.1) for step in range(12)],
        "MultiStep": lambda: plain("MultiStepLR", lr=0.5, milestones=[2, 5], gamma=0.5),
        "Multiplicative": lambda: plain("ExponentialLR", lr=0.5, gamma=0.8),
        "OneCycle": lambda: plain(
            "OneCycleLR",
            max_lr=0.5,
            total_steps=20,
            div_factor=5.0,
            cycle_momentum=False,
            final_div_factor=100.0,
        ),
        "PiecewiseConstant": lambda: [0.5] * 2 + [0.2] * 3 + [0.1] * 7,
        "Polynomial": lambda: plain("PolynomialLR", lr=0.5, total_iters=4, power=2.0),
        "Step": lambda: plain("StepLR", lr=0.5, step_size=3, gamma=0.5),
    }[name]()


SCHEDULES = {
    "Constant": {"learning_rate": 0.5},
    "Cosine": {"scheduler": "CosineDecay", "learning_rate": 0.5, "end_learning_rate": 0.1}
    | {"decay_steps": 5},
    "CosineAnnealing": {"initial_learning_rate": 0.5, "t_max": 20},
    "CosineAnnealingWarmRestarts": {"learning_rate": 0.5, "t_0": 3, "t_mult": 2},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3, "mode": "triangular2"},
    "Exponential": {"initial_learning_rate": 0.5, "decay_rate": 0.9, "decay_steps": 1},
    "InverseExponentialTimeDecay": {"learning_rate": 0.5, "step_exponent": 2, "decay_steps": 3}
    | {"decay_rate": 0.1},
    "InverseSquareRootDecay": {"initial_learning_rate": 0.5, "warmup_steps": 4},
    "Linear": {"initial_learning_rate": 0.5, "end_learning_rate": 0.1, "steps": 4},
    "MultiStep": {"learning_rate": "0.5", "gamma": 0.5, "milestones": [2, 5]},
    "Multiplicative": {"learning_rate": 0.5, "coefficient": 0.8},
    "OneCycle": {"initial_learning_rate": 0.1, "max_lr": 0.5, "total_steps": 20}
    | {"final_div_factor": 100.0},
    "PiecewiseConstant": {"values": [0.5, 0.2, 0.1], "boundaries": [2, 5]},
    "Polynomial": {"learning_rate": 0.5, "end_learning_rate": 0.0, "steps": 4, "power": 2.0},
    "Step": {"learning_rate": 0.5, "step_size": 3, "gamma": 0.5},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_have_the_rates_of_their_formulas(name):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "adjust_learning_rate": 2.0}]
    optimizer = cstorch.optim.SGD(groups, lr=9.0)
    schedule = cstorch.optim.configure_lr_scheduler(
        optimizer, {"scheduler": name, **SCHEDULES[name]}
    )
    expected = expected_rates(name)
    assert rates(optimizer, schedule) == pytest.approx([2 * rate for rate in expected], rel=1e-6)
    again = copy.deepcopy(schedule.state_dict())
    schedule.load_state_dict({**again, "last_epoch": 5})
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2 * expected[5])


def test_names_of_earlier_releases_are_the_same_objects():
    import cerebras_pytorch
    from cerebras_pytorch.optim.lr_scheduler import CyclicLR, LinearLR

    assert importlib.import_module("cerebras_pytorch.experimental") is cstorch
    for name in ("metrics", "distributed", "utils.nest", "core.modes", "experimental.metrics"):
        found = importlib.import_module(f"cerebras_pytorch.{name}")
        path = f"cerebras.pytorch.{name.removeprefix('experimental.')}"
        assert found is importlib.import_module(path)
    assert cerebras_pytorch.trace is cstorch.trace
    assert cerebras_pytorch.optim.AdamW is cstorch.optim.AdamW
    assert cerebras_pytorch.optim.lr_scheduler.Polynomial(None, 0.1)  # of release 1
    assert LinearLR is cstorch.optim.lr_scheduler.LinearLR
    optimizer = cstorch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    assert isinstance(CyclicLR(optimizer, 0.1, 0.5), cstorch.optim.lr_scheduler.CyclicLR)


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: cstorch.backend("GPU"), ["backend", "GPU"]),
        (lambda: cstorch.backend("CSX", fast=True), ["backend", "fast"]),
        (lambda: cstorch.backend("CSX", drop_data=True), ["drop_data"]),
        (lambda: cstorch.amp.set_half_dtype("int8"), ["half dtype", "int8"]),
        (lambda: cstorch.utils.data.DataExecutor(None, cs_config=Config()), ["num_csx", "2"]),
        (lambda: cstorch.optim.configure_optimizer("Muon", []), ["optimizer_type", "Muon"]),
        (lambda: configure_rates({"scheduler": "Cubic"}), ["scheduler", "cubic"]),
        (lambda: configure_rates({"scheduler": "Step"}), ["StepLR", "step_size"]),
        (lambda: configure_rates([{"scheduler": "Constant", "learning_rate": 1}] * 2), ["steps"]),
        (
            lambda: cstorch.utils.data.compute_num_steps([1], initial_step=5, max_steps=5),
            ["max_steps", "5"],
        ),
    ],
)
def test_wrong_options_are_refused(call, facts):
    with raises(ConfigError, *facts):
        call()


def test_ignored_keys_of_a_params_file_are_logged(caplog):
    configure_sgd(beta1=0.9)
    configure_rates({"scheduler": "Constant", "learning_rate": 1.0, "alpha": 0.1})
    facts = [("SGD", "beta1"), ("ConstantLR", "alpha")]
    assert [all(fact in line for fact in pair) for line, pair in zip(caplog.messages, facts)] == (
        [True, True]
    )


class Config:
    num_csx = 2


def configure_sgd(**options):
    parameters = [torch.zeros(1, requires_grad=True)]
    return cstorch.optim.configure_optimizer("SGD", parameters, **options)


def configure_rates(learning_rate):
    return cstorch.optim.configure_lr_scheduler(configure_sgd(), learning_rate)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ({}, 5),
        ({"num_steps": 7}, 7),
        ({"num_epochs": 2}, 10),
        ({"num_steps": 3, "num_epochs": 1}, 3),
        ({"num_epochs": 2, "steps_per_epoch": 3, "max_steps": 5}, 5),
        ({"max_steps": 9, "initial_step": 4, "grad_accum_steps": 2}, 10),
    ],
)
def test_the_number_of_steps(arguments, count):
    loader = cstorch.utils.data.DataLoader(make_loader)
    assert cstorch.utils.data.compute_num_steps(loader, **arguments) == count


def steps_of_pytorch(model, loss):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss.backward()
    optimizer.step()


def reads_a_value(model, loss):
    loss.item()


def clears_gradients(model, loss):
    optimizer = cstorch.optim.SGD(model.parameters(), 0.1)
    loss.backward()
    optimizer.zero_grad()


def steps_twice(model, loss):
    optimizer = cstorch.optim.SGD(model.parameters(), 0.1)
    loss.backward()
    optimizer.step()
    optimizer.step()


def shows_a_gradient(model, loss):
    optimizer = cstorch.optim.SGD(model.parameters(), 0.1)
    loss.backward()
    cstorch.step_closure(print)(model.layers[0].weight.grad.norm())
    optimizer.step()


@pytest.mark.parametrize(
    ("misuse", "facts"),
    [
        (steps_of_pytorch, ["SGD", "cerebras.pytorch.optim"]),
        (reads_a_value, ["value", "step closure"]),
        (clears_gradients, ["zero_grad"]),
        (steps_twice, ["optimizer.step", "once"]),
        (shows_a_gradient, ["gradients", "norm"]),
    ],
)
def test_what_cannot_be_recorded_is_refused(misuse, facts):
    model = cstorch.compile(make_model(), cstorch.backend("CSX"))
    loader = cstorch.utils.data.DataLoader(make_loader)
    with raises(UnsupportedOpError, *facts):
        for batch in cstorch.utils.data.DataExecutor(loader, num_steps=2):
            misuse(model, model(batch))


def test_load_refuses_damaged_files(tmp_path):
    path = tmp_path / "checkpoint.mdl"
    cstorch.save({"weights": torch.arange(1000.0)}, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with raises(CheckpointError, str(path), "CRC"):
        cstorch.load(path)
