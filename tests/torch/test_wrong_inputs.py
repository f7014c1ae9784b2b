"""Wrong inputs of every PyTorch entry point: one paragraph that names where, what and the value."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

import torch.nn.functional as F
from torch import nn

from cerebras_tf.errors import (
    BoundsError,
    CheckpointError,
    ConfigError,
    DataError,
    NumericsError,
    UnsupportedOpError,
)
from cerebras_tf.torch import PretrainedModel, TorchModel, TorchTraining, TrainingSettings, fit
from tests.messages import names


class Net(nn.Module):
    """A linear layer, and a function of it and the batch that is the loss."""

    def __init__(self, function=lambda self, x: self.layer(x).square().mean()):
        super().__init__()
        self.layer, self.function = nn.Linear(3, 1), function

    def forward(self, x):
        return self.function(self, x)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 5)

    def forward(self, ids, labels):
        return F.cross_entropy(self.out(self.embed(ids)), labels)


def x(*shape, **settings):
    return {"x": torch.ones(*shape or (2, 3), **settings)}


def words(ids=(1, 2), labels=(0, 1)):
    return {"ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def sgd(model, kind=torch.optim.SGD, **settings):
    return kind(model.parameters(), lr=0.1, **settings)


def fitted(model=None, loader=None, optimizer=None, steps=2, **options):
    model = Net() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    return fit(model, optimizer, [x()] if loader is None else loader, steps=steps, **options)


def loss(function):
    """A call of fit with this loss; `layer` is linear."""
    return lambda tmp: fitted(Net(function))


def batches(*given, model=Net):
    return lambda tmp: fitted(model(), list(given))


def options(**given):
    return lambda tmp: fitted(**given)


def with_optimizer(make, **given):
    def call(tmp):
        model = Net()
        fitted(model, optimizer=make(model), **given)

    return call


def changed(change):
    """A call of fit with a model that was changed."""

    def call(tmp):
        model = Net()
        optimizer = sgd(model)
        fitted(change(model) or model, optimizer=optimizer)

    return call


def scheduled(tmp):
    other = torch.optim.lr_scheduler.ConstantLR(sgd(Net()))
    fitted(scheduler=other)


def cycled(tmp):
    model = Net()
    optimizer = sgd(model, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [constant, cycle], [2])
    fitted(model, optimizer=optimizer, scheduler=both)


def counted(self, x):
    self.count = getattr(self, "count", 0) + 1
    return self.layer(x).mean() * self.count


def stepping(change):
    """A call of fit whose update also changes the first group of the optimizer."""

    def call(tmp):
        model, count = Net(), [0]
        optimizer = sgd(model, momentum=0.9)

        def update():
            optimizer.step()
            change(optimizer.param_groups[0], count)

        fitted(model, optimizer=optimizer, update=update)

    return call


def normalized(rows, **settings):
    def call(tmp):
        model = Net()
        model.layer = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        fitted(model, [x(4, 3), x(rows, 3)], optimizer=sgd(model), **settings)

    return call


def in_file(name):
    def call(tmp):
        (tmp / "file").write_text("x")
        fitted(**{name: str(tmp / "file")})

    return call


def resumed(spoil=lambda folder: None, **given):
    """A second call of fit on the folder of a first one."""

    def call(tmp):
        fitted(loader=[x()] * 5, model_dir=str(tmp))
        spoil(tmp / "step-000002")
        given.setdefault("loader", [x()] * 5)
        fitted(model_dir=str(tmp), steps=3, **given)

    return call


def adam(tmp):
    model = Net()
    fitted(model_dir=str(tmp))
    fitted(model, optimizer=sgd(model, torch.optim.Adam), model_dir=str(tmp), steps=3)


def meta():
    with torch.device("meta"):
        return Net()


FIT = {
    "option": (options(stepz=3), ConfigError, ["stepz"]),
    "clip": (options(clip=0), ConfigError, ["clip", 0]),
    "profile": (options(profile=1), ConfigError, ["profile", "model_dir"]),
    "loggers": (options(loggers=("x",)), ConfigError, ["loggers", "x"]),
    "precision": (options(precision="float16"), ConfigError, ["precision", "float16"]),
    "micro_batches": (options(micro_batches=3), ConfigError, ["micro_batches", 3, [2]]),
    "steps": (options(steps=0), ConfigError, ["steps", 0]),
    "steps type": (options(steps=2.5), ConfigError, ["steps", 2.5]),
    "clip, update": (
        options(clip=1.0, update=lambda: None), ConfigError, ["clip", "update"]),
    "update without step": (options(update=lambda: None), ConfigError, ["update", "step()"]),
    "model": (options(model=len, optimizer=sgd(Net())), ConfigError, ["model", "builtin"]),
    "scheduler": (options(scheduler=object()), ConfigError, ["scheduler", "object"]),
    "scheduler of another": (scheduled, ConfigError, ["scheduler", "ConstantLR"]),
    "cycle_momentum": (cycled, ConfigError, ["OneCycleLR", "cycle_momentum=False"]),
    "eval_every": (options(eval_every=1), ConfigError, ["eval_every", "eval_loader"]),
    "eval_steps": (options(eval_steps=3), ConfigError, ["eval_steps", 3]),
    "update of settings": (
        stepping(lambda group, count: group.update(momentum=0.5)),
        ConfigError, ["update", "momentum", "scheduler"]),
    "counter in update": (
        stepping(lambda group, count: count.append(1)),
        UnsupportedOpError, ["update", "count", [0], [0, 1]]),
    "counter in model": (loss(counted), UnsupportedOpError, ["model", "count", 1]),
    "one row": (normalized(1), DataError, ["BatchNorm1d", (1, 3), "drop_last"]),
    "one row of a micro-batch": (normalized(4, micro_batches=4), DataError, ["BatchNorm1d"]),
    "generator": (options(loader=(b for b in [x()])), ConfigError, ["loader", "generator"]),
    "empty loader": (options(loader=[]), DataError, ["loader", "epoch 0"]),
    "empty eval": (options(eval_loader=[]), DataError, ["eval_loader"]),
    "eval generator": (options(eval_loader=iter([x()])), ConfigError, ["eval_loader"]),
    "eval keys": (options(eval_loader=[{"y": torch.ones(2)}]), DataError, ["x", "y"]),
    "text": (batches({"x": "text"}), DataError, ["x", "str"]),
    "none": (batches({**x(), "n": None}), DataError, ["n", "NoneType"]),
    "meta batch": (batches(x(device="meta")), DataError, ["x", "meta"]),
    "complex": (batches(x(dtype=torch.complex64)), DataError, ["x", "complex64"]),
    "bfloat16": (batches(x(dtype=torch.bfloat16)), DataError, ["x", "bfloat16"]),
    "sparse": (batches({"x": torch.ones(2, 3).to_sparse()}), DataError, ["x", "sparse"]),
    "float64": (batches(x(dtype=torch.float64)), UnsupportedOpError, ["float64", "layer"]),
    "integers": (batches(x(dtype=torch.int64)), UnsupportedOpError, ["int64", "layer"]),
    "other keys": (batches(x(), {"y": torch.ones(2, 3)}), DataError, ["x", "y"]),
    "other structure": (batches(x(), [torch.ones(2, 3)]), DataError, ["x", "0"]),
    "later shape": (batches(x(), x(2, 4)), DataError, ["x", 4]),
    "later rank": (batches(x(), x(2, 3, 1)), DataError, ["x", [2, 3, 1]]),
    "shape": (batches(x(2, 4)), UnsupportedOpError, ["4", "test_wrong_inputs.py:"]),
    "rows": (
        batches(words(), words((1, 2, 3)), model=Words), DataError, ["axis 0 of labels", 3, 2]),
    "missing argument": (
        batches({"ids": torch.tensor([1])}, model=Words), UnsupportedOpError, ["labels"]),
    "token": (batches(words((1, 7)), model=Words), BoundsError, ["[0, 7)", "7 at position 1"]),
    "negative token": (batches(words((1, -1)), model=Words), BoundsError, ["-1"]),
    "token above 32 bits": (batches(words((1, 2**32)), model=Words), BoundsError, [2**32]),
    "label": (batches(words(labels=(0, 5)), model=Words), BoundsError, ["labels", "[0, 5)"]),
    "no rows": (batches(x(0, 3)), NumericsError, ["step 1", "nan"]),
    "vector": (loss(lambda self, x: self.layer(x)), ConfigError, ["loss", ", 1]"]),
    "integer loss": (loss(lambda self, x: self.layer(x).mean().long()), ConfigError, ["int64"]),
    "no loss": (loss(lambda self, x: None), ConfigError, ["loss", "no tensor"]),
    "no gradient": (loss(lambda self, x: self.layer(x).mean().detach()), ConfigError, ["loss"]),
    "item": (loss(lambda self, x: x.mean() * self.layer(x).sum().item()), ConfigError, ["loss"]),
    "infinite": (loss(lambda self, x: self.layer(x).mean() / 0), NumericsError, ["step 1", "inf"]),
    "branch": (
        loss(lambda self, x: x.mean() if self.layer(x).sum() > 0 else -x.mean()),
        UnsupportedOpError, ["model", "data-dependent", "test_wrong_inputs.py:"]),
    "cuda": (
        loss(lambda self, x: self.layer(x.to("cuda")).mean()), UnsupportedOpError, ["test_wrong"]),
    "numpy": (
        loss(lambda self, x: torch.from_numpy(x.numpy()).mean()), UnsupportedOpError, ["numpy"]),
    "own error": (loss(lambda self, x: self.nothing), UnsupportedOpError, ["nothing"]),
    "op": (
        loss(lambda self, x: torch.fft.rfft(self.layer(x)).abs().mean()),
        UnsupportedOpError, ["fft_r2c", "test_wrong_inputs.py:"]),
    "python random": (
        loss(lambda self, x: self.layer(x).mean() * random.random()),
        UnsupportedOpError, ["random"]),
    "numpy random": (
        loss(lambda self, x: self.layer(x).mean() * np.random.rand()),
        UnsupportedOpError, ["numpy.random"]),
    "bfloat16 weights": (
        lambda tmp: fitted(Net(lambda self, x: self.layer(x.bfloat16()).float().mean()).bfloat16()),
        ConfigError, ["bfloat16", "float32"]),
    "branch on size": (
        batches(x(6, 3), x(2, 3), model=lambda: Net(
            lambda self, x: self.layer(x).mean() * (2 if x.shape[0] > 4 else 1))),
        UnsupportedOpError, ["x.shape[0] > 4", "(2, 3)"]),
    "random": (
        loss(lambda self, x: (self.layer(x) * torch.multinomial(x.abs(), 1)).mean()),
        UnsupportedOpError, ["aten.multinomial"]),
    "frozen": (changed(lambda model: model.requires_grad_(False)), ConfigError, ["requires_grad"]),
    "half": (changed(lambda model: model.half()), UnsupportedOpError, ["float16", "float32"]),
    "hook": (
        changed(lambda model: model.layer.weight.register_hook(abs) and None),
        UnsupportedOpError, ["layer.weight"]),
    "meta buffer": (
        changed(lambda model: model.register_buffer("b", torch.ones(3, device="meta"))),
        ConfigError, ["b", "meta"]),
    "meta model": (lambda tmp: fitted(meta()), ConfigError, ["layer.weight"]),
    "another model's": (with_optimizer(lambda model: sgd(Net())), ConfigError, ["optimizer", 2]),
    "no optimizer": (with_optimizer(lambda model: object()), ConfigError, ["object"]),
    "closure": (with_optimizer(lambda m: sgd(m, torch.optim.LBFGS)), UnsupportedOpError, ["LBFGS"]),
    "sparse optimizer": (
        with_optimizer(lambda m: sgd(m, torch.optim.SparseAdam)), UnsupportedOpError, ["Sparse"]),
    "dampening": (
        with_optimizer(lambda model: sgd(model, momentum=0.9, dampening=0.5)),
        UnsupportedOpError, ["dampening"]),
    "model_dir": (in_file("model_dir"), ConfigError, ["model_dir", "file"]),
    "memoryx_dir": (in_file("memoryx_dir"), OSError, ["memoryx_dir", "file"]),
    "checkpoint's optimizer": (adam, CheckpointError, ["step-000002", "exp_avg"]),
    "checkpoint's data": (resumed(loader=[x(4, 3)] * 5), DataError, ["batch 2 of epoch 0"]),
    "checkpoint's model": (
        resumed(model=Words(), loader=[words()] * 5, resume_data=False),
        CheckpointError, ["step-000002", "embed.weight"]),
    "checkpoint's state": (
        resumed(lambda folder: (folder / "state.json").write_text("{")),
        CheckpointError, ["step-000002"]),
    "checkpoint's file": (
        resumed(lambda folder: (folder / "model.safetensors").unlink()),
        CheckpointError, ["model.safetensors", "No such file"]),
}  # fmt: skip


def training(**settings):
    model = Net()
    return TorchTraining(TorchModel(model, x(), sgd(model)), **settings)


def stepped(batch, **settings):
    return lambda tmp: training(**settings).step(batch)


def captured(example=None, **settings):
    def call(tmp):
        model = Net()
        TorchModel(model, x() if example is None else example, sgd(model), **settings)

    return call


def group_changed(tmp):
    made = training()
    made.model.update._optimizer.param_groups[0]["weight_decay"] = 0.1
    made.step(x())


TRAINING = {
    "no keys": (stepped({}), DataError, ["x", "none"]),
    "extra key": (stepped({**x(), "y": torch.ones(2)}), DataError, ["x", "y"]),
    "array": (stepped({"x": np.ones((2, 3), "f")}), DataError, ["x", "ndarray"]),
    "no dict": (stepped(torch.ones(2, 3)), DataError, ["Tensor"]),
    "no batch": (stepped([]), DataError, ["none"]),
    "weights": (stepped(x(), weights={"w": lambda: np.ones(3)}), ConfigError, ["weights", "w"]),
    "weights' shape": (
        stepped(x(), weights={"layer.weight": lambda: np.ones((1, 4), "f")}),
        CheckpointError, ["layer.weight", [1, 4]]),
    "gradients": (stepped(x(), gradients=["w"]), ConfigError, ["gradients", "w"]),
    "setting": (lambda tmp: TrainingSettings(num_csx=0), ConfigError, ["num_csx", 0]),
    "settings' group": (group_changed, ConfigError, ["weight_decay", 0.1]),
    "folder": (lambda tmp: training().restore(tmp / "none"), CheckpointError, ["none"]),
    "state": (lambda tmp: training().save(tmp / "c", {"a": object()}), CheckpointError, ["object"]),
    "list": (captured([torch.ones(2, 3)]), DataError, ["list"]),
    "open_axes": (captured(open_axes={"y": [0]}), ConfigError, ["open_axes", "y"]),
    "stored": (captured(stored={"y": "bfloat16"}), ConfigError, ["stored", "y"]),
}  # fmt: skip


def check(call, error, facts, tmp_path):
    with pytest.raises(error) as caught:
        call(tmp_path)
    text = str(caught.value)
    assert names(text, "Received: ", *facts)
    assert "\n" not in text and "Traceback" not in text and len(text) < 700


@pytest.mark.parametrize("name", FIT)
def test_fit_refuses(name, tmp_path):
    check(*FIT[name], tmp_path)


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_refuses(name, tmp_path):
    check(*TRAINING[name], tmp_path)


def pretrained(spoil=None, kind=None, settings=None, **shards):
    """Opens a folder of Llama after it was changed."""

    def call(tmp):
        folders = pytest.importorskip("tests.torch_step.folders")
        folder = folders.write("llama", tmp / "model", **shards)
        if spoil is not None:
            spoil(folder)
        return PretrainedModel(folder, kind, **(settings or {})), folders.batch()

    return call


def index(change):
    def spoil(folder):
        path = folder / "model.safetensors.index.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return pretrained(spoil, max_shard_size="20KB")


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def other_model(folder):
    from tests.torch_step.folders import write

    other = write("gpt2", folder.parent / "other")
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")


def trained_after(change):
    def call(tmp):
        model, batch = pretrained()(tmp)
        optimizer = torch.optim.SGD(model.trained(), lr=0.1)
        fit(model, change(model, batch) or optimizer, [batch], steps=1)

    return call


def without_labels(model, batch):
    del batch["labels"]


def large_token(model, batch):
    batch["input_ids"][0, 0] = 97


PRETRAINED = {
    "shard": (
        pretrained(lambda f: sorted(f.glob("*.safetensors"))[1].unlink(), max_shard_size="20KB"),
        CheckpointError, ["model-00002", "No such file"]),
    "index": (
        index(lambda content: content["weight_map"].update({"lm_head.weight": "absent"})),
        CheckpointError, ["absent", "No such file"]),
    "weight_map": (
        index(lambda content: content.update(weight_map=[1])), CheckpointError, ["weight_map"]),
    "another model's": (pretrained(other_model), CheckpointError, ["LlamaForCausalLM", "q_proj"]),
    "pickled": (pretrained(pickled), CheckpointError, ["pytorch_model.bin", "save_pretrained"]),
    "kind": (pretrained(kind="AutoModelForNothing"), ConfigError, ["AutoModelForNothing"]),
    "task": (pretrained(kind="AutoModelForImageClassification"), ConfigError, ["ImageClass"]),
    "settings": (pretrained(settings={"sizes": 3}), ConfigError, ["sizes", "LlamaConfig"]),
    "no folder": (lambda tmp: PretrainedModel(tmp / "no"), CheckpointError, ["config.json"]),
    "labels": (trained_after(without_labels), ConfigError, ["loss", "labels"]),
    "token": (trained_after(large_token), BoundsError, ["[0, 97)", "97 at position 0"]),
    "optimizer": (trained_after(lambda *given: sgd(Net())), ConfigError, ["optimizer"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_pretrained_model_refuses(name, tmp_path):
    pytest.importorskip("transformers", reason="transformers is an extra")
    check(*PRETRAINED[name], tmp_path)


def compiled(function, example, **settings):
    """The loss of a compiled model, which must not run eagerly."""
    settings.setdefault("options", {"fallback": False})
    model = function if isinstance(function, nn.Module) else Net(function)
    return torch.compile(model, backend="cerebras", **settings)(**example)


COMPILED = {
    "token": (Words(), words((1, 7)), {}, BoundsError, ["[0, 7)", "7 at position 1"]),
    "label": (Words(), words(labels=(0, 5)), {}, BoundsError, ["labels", "[0, 5)"]),
    "dtype": (Net(), x(dtype=torch.float64), {}, UnsupportedOpError, ["float64"]),
    "op": (
        lambda self, x: torch.fft.rfft(self.layer(x)).abs().mean(), x(), {},
        Exception, ["fft_r2c", "test_wrong_inputs.py:"]),
    "graph break": (
        lambda self, x: x.mean() if self.layer(x).sum() > 0 else -x.mean(), x(),
        {"fullgraph": True}, Exception, ["ranch"]),
    "shape": (Net(), x(2, 4), {}, Exception, ["4"]),
    "option": (Net(), x(), {"options": {"x": 1}}, Exception, ["options", "x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_model_refuses(name):
    function, example, settings, error, facts = COMPILED[name]
    torch._dynamo.reset()
    with pytest.raises(error) as caught:
        compiled(function, example, **settings)
    assert names(caught.value, *facts)


def test_no_gradient_passes_through_item():
    model = Net(lambda self, x: self.layer(x).mean() * self.layer(x).sum().item())
    twin = Net(model.function)
    twin.load_state_dict(model.state_dict())
    batch = {"x": torch.arange(6.0).reshape(2, 3)}
    fitted(model, [batch], steps=1)
    twin(**batch).backward()
    sgd(twin).step()
    for ours, theirs in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(ours, theirs)
