"""The names of the PyTorch platform of 2022, used as a runner of that time uses them."""

from __future__ import annotations

import copy

import pytest

from cerebras_tf.errors import ConfigError, SystemUnreachableError
from tests.address.conftest import files, serve  # noqa: F401  # fixtures
from tests.messages import raises

torch = pytest.importorskip("torch")

import cerebras_pytorch as cbtorch
from cerebras_pytorch import amp
from cerebras_pytorch.core import cb_model as cm
from cerebras_pytorch.core import modes, name_scope
from cerebras_pytorch.utils import extract_loss


class Schedule:
    """A learning rate for each step, with the interface of a zoo's scheduler."""

    last_epoch = 0

    def lr_function(self, step):
        return 0.1 / (step + 1)

    def step(self):
        self.last_epoch = cm.get_run_step()


class Runner:
    """Trains and evaluates, and keeps losses and checkpoints."""

    def __init__(self, model, folder):
        self.model = cbtorch.module(model, cm.device())
        self.folder, self.losses, self.rows = folder, [], []

    @cm.step_closure
    def log(self, loss, step):
        cm.print_update(cm.device(), step, loss.item(), modes.TRAIN)
        self.losses.append(loss.item())

    @cm.step_closure
    def save(self, step):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        cm.save(state, str(self.folder / f"checkpoint_{step}.mdl"))

    def train(self, data, steps):
        self.optimizer = cbtorch.optimizer(torch.optim.Adam(self.model.parameters(), 0.1))
        self.optimizer.gradient_clipper = lambda parameters: torch.nn.utils.clip_grad_norm_(
            parameters, 0.5
        )
        schedule, scaler = Schedule(), amp.GradScaler(loss_scale="dynamic")
        self.optimizer.set_main_lr_scheduler(schedule)
        loader = cbtorch.dataloader(data)
        self.model.train()
        with cbtorch.Session(loader, modes.TRAIN):
            for x, y in loader:
                self.optimizer.zero_grad()
                with name_scope("loss"):
                    loss = extract_loss((((self.model(x) - y) ** 2).mean(),))
                scaler.scale(loss).backward()
                self.optimizer.step()
                schedule.step()
                self.log(loss, cm.get_run_step())
                if cm.get_run_step() == steps:
                    self.save(steps)
                    break
            cm.mark_step()


@pytest.fixture
def platform(tmp_path):
    cbtorch.initialize(service_workdir=str(tmp_path), cs_ip="127.0.0.1:9000")
    yield cbtorch
    cbtorch.env().service_workdir = ""
    cbtorch.state().__init__()


def eager(model, data):
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.1), []
    for step, (x, y) in enumerate(data):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        loss = ((model(x.float()) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_runner_of_the_time_trains_as_eager_does(platform, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    host = copy.deepcopy(model)
    data = [(torch.randn(6, 4).half(), torch.randn(6, 1)) for _ in range(5)]
    runner = Runner(model, tmp_path)
    runner.train([*data, *data], steps=5)
    assert runner.losses == pytest.approx(eager(host, data), rel=1e-5)
    saved = torch.load(tmp_path / "checkpoint_5.mdl", weights_only=True)
    torch.testing.assert_close(saved["model"], host.state_dict(), rtol=1e-5, atol=1e-6)
    assert saved["optimizer"]["state"][0]["step"] == 5
    assert cbtorch.state().rate_tracker.global_rate() > 0


def test_compiling_runs_no_step_and_writes_the_program(platform, tmp_path):
    folder = tmp_path / "programs"
    cbtorch.initialize(str(tmp_path), compile_dir=str(folder), compile_only=True)
    model = torch.nn.Linear(4, 1)
    before = copy.deepcopy(model.state_dict())
    cbtorch.module(model)
    optimizer = cbtorch.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    for x in cbtorch.dataloader([torch.randn(2, 4)]):
        model(x).sum().backward()
        optimizer.step()
        break
    assert cbtorch.compile() is True
    cbtorch.env().compile_only = False
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert list(folder.glob("program_*.zip"))


def trained(folder, **wafer):
    """The weights after two steps with dropout."""
    cbtorch.initialize(str(folder), **wafer)
    torch.manual_seed(0)
    model = cbtorch.module(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.4)))
    optimizer = cbtorch.optimizer(torch.optim.Adam(model.parameters(), 0.1))
    with cbtorch.Session(loader := cbtorch.dataloader([torch.ones(2, 4)] * 2), "train"):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
    return list(model.parameters())


def test_a_wafer_at_an_address_gives_the_same(platform, tmp_path, serve, files):  # noqa: F811
    from cerebras_tf.address import client

    server = serve()
    there = trained(tmp_path, cs_ip=f"127.0.0.1:{server.port}", credentials_path=str(files[0]))
    assert server.status()["steps"] == 2
    client.release_wafers()
    torch.testing.assert_close(there, trained(tmp_path), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "error", "facts"),
    [
        ({"cs_ip": "localhost:1"}, SystemUnreachableError, ["cs_ip", "localhost:1"]),
        ({"credentials_path": "x"}, ConfigError, ["credentials_path", "without cs_ip"]),
        ({"appliance": True}, ConfigError, ["appliance"]),
    ],
)
def test_what_cannot_be_had_is_refused(options, error, facts):
    with raises(error, *facts):
        cbtorch.initialize(**options)


def test_a_number_of_replicas_is_refused_and_not_ignored():
    cm.set_target_num_replicas(-1)
    with raises(ConfigError, "num_replicas", "2"):
        cm.set_target_num_replicas(2)


def test_a_name_that_is_not_provided_is_named():
    with pytest.raises(AttributeError, match="cerebras_pytorch: a name must be .* appliance"):
        cbtorch.appliance  # noqa: B018
