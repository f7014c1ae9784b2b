"""The engine's steps: stores, precision, micro-batches, checkpoints, optimizer state."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

import torch.nn.functional as F
from torch import nn

from cerebras_tf.errors import CheckpointError, ConfigError, DataError
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.settings import TrainingSettings
from cerebras_tf.torch_step.training import Reports, TorchTraining
from tests.messages import raises

CLASSES = 11


class Tagger(nn.Module):
    """Labels tokens; -100 is ignored. Two layers with dropout between them."""

    def __init__(self, dropout=0.0, width=8):
        super().__init__()
        self.embed, self.norm = nn.Embedding(23, width), nn.LayerNorm(width)
        self.hidden, self.classify = nn.Linear(width, 16), nn.Linear(16, CLASSES)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids, labels):
        hidden = self.dropout(F.gelu(self.hidden(self.norm(self.embed(ids)))))
        logits = self.classify(hidden)
        return F.cross_entropy(logits.reshape(-1, CLASSES), labels.reshape(-1))


def made(dropout=0.0, lr=1e-2, seed=0, **settings):
    """A model, its optimizer and its training."""
    torch.manual_seed(seed)
    module = Tagger(dropout)
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
    model = TorchModel(module, batches(1)[0], optimizer)
    return module, optimizer, TorchTraining(model, TrainingSettings(**settings))


def batches(count, rows=6, length=5, seed=1):
    """Batches whose rows have 1 to `length` labels."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        ids = torch.randint(0, 23, (rows, length), generator=generator)
        labels = ids % CLASSES
        for row in range(rows):
            labels[row, 1 + row % length :] = -100
        found.append({"ids": ids, "labels": labels})
    return found


def losses(training, given):
    return [training.step(batch)["loss"] for batch in given]


def state_of(training):
    return {name: training.tensor(name) for name in training.store.specs}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def eager(count=4, joined=1, **settings):
    """Losses, module and optimizer of training by eager; of `joined` batches per step."""
    module, optimizer, training = made(**settings)
    training.close()
    found, given = [], batches(count * joined)
    for start in range(0, count * joined, joined):
        optimizer.zero_grad()
        parts = [module(**batch) / joined for batch in given[start : start + joined]]
        sum(parts).backward()
        optimizer.step()
        found.append(float(sum(parts)))
    return found, module, optimizer


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"micro_batches": 3},
        {"micro_batches": 2, "files": True},
        {"num_csx": 2},
        {"batches_per_step": 3, "files": True},
    ],
    ids=str,
)
def test_losses_and_optimizer_state_equal_eager(settings, tmp_path):
    settings = dict(settings)
    joined = max(settings.get("num_csx", 1), settings.get("batches_per_step", 1))
    if settings.pop("files", False):
        settings |= {"memoryx_dir": str(tmp_path), "memoryx_ram_gb": 5e-5}
    expected, module, optimizer = eager(joined=joined)
    mine, own, training = made(**settings)
    given = batches(4 * joined)
    steps = given if joined == 1 else [given[i : i + joined] for i in range(0, 4 * joined, joined)]
    np.testing.assert_allclose(losses(training, steps), expected, rtol=1e-5)
    training.copy_back()
    training.close()
    for ours, theirs in zip(mine.parameters(), module.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        for key, value in optimizer.state[theirs].items():
            found = own.state[ours][key]
            assert found.dtype == value.dtype and found.shape == value.shape
            torch.testing.assert_close(found, value, rtol=1e-3, atol=1e-7, msg=key)


def test_training_continues_in_torch_after_copy_back():
    expected, *_ = eager(6)
    module, optimizer, training = made()
    losses(training, batches(3))
    training.copy_back()
    training.close()
    found = []
    for batch in batches(6)[3:]:
        optimizer.zero_grad()
        loss = module(**batch)
        loss.backward()
        optimizer.step()
        found.append(float(loss))
    np.testing.assert_allclose(found, expected[3:], rtol=1e-5)


@pytest.mark.parametrize("moments", [None, "bfloat16"])
def test_files_give_the_bits_of_memory(moments, tmp_path):
    found = []
    for folder in (None, str(tmp_path)):
        ram = {} if folder is None else {"memoryx_ram_gb": 5e-5}
        *_, training = made(0.2, memoryx_dir=folder, memoryx_moment_dtype=moments, **ram)
        assert (training.store.folder is None) == (folder is None)
        found.append((losses(training, batches(4)), state_of(training)))
        training.close()
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1])
    kinds = {n.rpartition("/")[2]: t.dtype for n, t in found[0][1].items() if "/" in n}
    assert kinds["exp_avg"] == kinds["exp_avg_sq"] == getattr(torch, moments or "float32")


def test_precision_bfloat16_rounds_products():
    module = nn.Linear(256, 256)
    batch = {"x": torch.randn(512, 256, generator=torch.Generator().manual_seed(0))}

    def loss(model, batch):
        return model(batch["x"]).square().mean()

    found = []
    for precision in ("float32", "bfloat16"):
        model = TorchModel(module, batch, torch.optim.SGD(module.parameters(), lr=0.1), loss)
        training = TorchTraining(model, TrainingSettings(precision=precision))
        found.append(training.step(batch)["loss"])
        rounded = [i.attrs.get("compute") for i in training.program.instructions()]
        assert ("bfloat16" in rounded) == (precision == "bfloat16")
    assert found[0] != found[1] and found[0] == pytest.approx(found[1], rel=1e-2)


@pytest.mark.parametrize("before,after", [(None, None), ("bfloat16", "bfloat16")])
def test_a_restored_training_gives_the_same_bits(before, after, tmp_path):
    given = batches(6)
    *_, training = made(0.2, memoryx_moment_dtype=before)
    losses(training, given[:3])
    training.save(tmp_path / "step-000003", {"run": 5})
    expected = losses(training, given[3:])
    *_, resumed = made(0.2, seed=7, memoryx_moment_dtype=after, memoryx_dir=str(tmp_path / "x"))
    assert resumed.restore(tmp_path / "step-000003") == {"run": 5} and resumed.global_step == 3
    assert losses(resumed, given[3:]) == expected
    assert_same(state_of(training), state_of(resumed))
    assert not list(tmp_path.glob(".unfinished*"))


def test_a_checkpoint_has_names_of_state_dict_and_loads_with_other_moments(tmp_path):
    module, _, training = made(memoryx_moment_dtype="bfloat16")
    losses(training, batches(2))
    training.save(tmp_path / "c")
    safetensors = pytest.importorskip("safetensors.torch")
    module.load_state_dict(safetensors.load_file(tmp_path / "c" / "model.safetensors"))
    assert torch.equal(module.embed.weight, training.tensor("embed.weight"))
    *_, plain = made()
    plain.restore(tmp_path / "c")
    name = "embed.weight/exp_avg"
    assert torch.equal(plain.tensor(name), training.tensor(name).float())


def damage(folder, how):
    path = folder / "optimizer.safetensors"
    if how == "bytes":
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif how == "state":
        (folder / "state.json").unlink()


@pytest.mark.parametrize(
    "how,fact", [("bytes", "exp_avg"), ("cut", "optimizer.safetensors"), ("state", "state.json")]
)
def test_a_damaged_checkpoint_is_refused(how, fact, tmp_path):
    *_, training = made()
    training.save(tmp_path / "c")
    damage(tmp_path / "c", how)
    with raises(CheckpointError, tmp_path / "c", fact):
        training.restore(tmp_path / "c")


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    *_, training = made()
    training.save(tmp_path / "c")
    module = nn.Linear(3, 1)
    model = TorchModel(
        module,
        {"x": torch.ones(2, 3)},
        torch.optim.SGD(module.parameters(), lr=0.1),
        lambda model, batch: model(batch["x"]).mean(),
    )
    with raises(CheckpointError, "weight is missing", "and 27 more"):
        TorchTraining(model).restore(tmp_path / "c")


@pytest.mark.parametrize(
    "settings,facts",
    [
        ({"precision": "float16"}, ["precision", "float16"]),
        ({"micro_batches": 0}, ["micro_batches", "0"]),
        ({"memoryx_ram_gb": 1.0}, ["memoryx_ram_gb"]),
        ({"memoryx_dir": "gs://x"}, ["memoryx_dir"]),
        ({"keep_float32": ("x",)}, ["keep_float32"]),
        ({"attention_precision": "bfloat16"}, ["attention_precision"]),
        ({"memoryx_moment_dtype": "float16"}, ["memoryx_moment_dtype"]),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings, facts):
    with raises(ConfigError, *facts):
        TrainingSettings(**settings)


def test_batches_that_do_not_fit_are_refused():
    *_, training = made(micro_batches=4)
    with raises(ConfigError, "micro_batches", "4", "[6]"):
        training.step(batches(1)[0])
    *_, training = made()
    training.step(batches(1)[0])
    with raises(DataError, "1", "2"):
        training.step(batches(2))


def test_programs_are_saved_and_found_again(tmp_path):
    found, lines = [], []
    for seed in (3, 4):
        torch.manual_seed(seed)
        module = Tagger(0.5)
        model = TorchModel(module, batches(1)[0], torch.optim.SGD(module.parameters(), lr=0.1))
        settings = TrainingSettings(compile_dir=str(tmp_path))
        training = TorchTraining(model, settings, reports=Reports(lines.append))
        found.append(losses(training, batches(2)))
    assert len(list(tmp_path.glob("*.zip"))) == 1 and sum("compile_dir" in x for x in lines) == 1
    plain = TorchTraining(model)
    assert found[0] != found[1] and losses(plain, batches(2)) == found[1]


def test_a_model_without_data_trains_on_weights_that_are_given():
    expected, *_ = eager(3)
    given = {name: tensor.numpy() for name, tensor in made()[0].state_dict().items()}
    with torch.device("meta"):
        module = Tagger()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    model = TorchModel(module, batches(1)[0], optimizer)
    weights = {name: lambda array=array: array for name, array in given.items()}
    training = TorchTraining(model, weights=weights)
    np.testing.assert_allclose(losses(training, batches(3)), expected, rtol=1e-5)
    training.copy_back()
    assert not optimizer.state and module.embed.weight.is_meta
    with raises(ConfigError, "weights", "embed.weight"):
        TorchTraining(model).step(batches(1)[0])
