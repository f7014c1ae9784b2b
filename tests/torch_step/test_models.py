"""Whole models against PyTorch eager: losses, gradients, sizes, dropout."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.training import TorchTraining
from tests.torch_step.eager import GRADIENT, LOSS, assert_equal, clipped, train
from tests.torch_step.models import NAMES, Decoder, ids, lengths_mask, make

FUSED = {"layer_norm", "linear_softmax_xent_train"}
STEPS = 5


@pytest.mark.parametrize("name", NAMES)
def test_a_models_losses_and_gradients_equal_eager(name):
    module, batch = make(name)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    batches = [batch() for _ in range(STEPS)]
    found, training = train(module, batches, optimizer, clipped(module, optimizer))
    assert found.loss <= LOSS and found.gradient <= GRADIENT, found
    if name in ("gpt2", "hf_bert", "hf_gpt2"):
        attention = "packed_attention" if name == "hf_bert" else "attention"
        assert {i.op for i in training.program.instructions()} >= {*FUSED, attention}


def test_a_convolutional_networks_buffers_equal_eager():
    module, batch = make("cnn")
    assert_equal(module, [batch() for _ in range(STEPS)])


def _decoder_batch(generator, rows, length):
    tokens, labels = (ids(generator, 211, rows, length) for _ in range(2))
    return {"input_ids": tokens, "labels": labels}


def _bert_batch(generator, rows, length):
    lengths = [length, *(1 + i % length for i in range(1, rows))]
    return {
        "input_ids": ids(generator, 211, rows, length),
        "attention_mask": lengths_mask(*lengths).long(),
        "labels": ids(generator, 2, rows),
    }


def _bert():
    return make("hf_bert")[0]


@pytest.mark.parametrize("module,batch", [(Decoder, _decoder_batch), (_bert, _bert_batch)])
def test_one_capture_serves_all_sizes_of_a_batch(module, batch):
    torch.manual_seed(0)
    module, generator = module(), torch.Generator().manual_seed(2)
    sizes = ((8, 8), (3, 17), (7, 64), (1, 5), (4, 8))
    batches = [batch(generator, *size) for size in sizes]
    captures, after = [], []
    capture = TorchModel.capture

    def counted(*args, **keys):
        captures.append(args)
        return capture(*args, **keys)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchModel, "capture", counted)
        found, _ = train(module, batches, after=lambda: after.append(len(captures)))
    assert found.loss <= LOSS and found.gradient <= GRADIENT
    assert len(set(after)) == 1  # all of them for the first batch


@pytest.mark.parametrize("name", ["hf_bert", "encoder"])
def test_padding_is_removed(name):
    module, batch = make(name)
    example = batch()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    training = TorchTraining(TorchModel(module, example, optimizer))
    training.step(example)
    assert training.program.packing is not None


def test_dropout_has_torchs_distribution_and_is_repeatable():
    class Dropped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(64))

        def forward(self, x):
            return torch.nn.functional.dropout(x * self.scale, 0.25, self.training).mean()

    def losses(seed):
        module, batch = Dropped(), {"x": torch.ones(64, 64)}
        frozen = torch.optim.SGD(module.parameters(), lr=0.0)
        training = TorchTraining(TorchModel(module, batch, frozen, seed=seed))
        return [training.step(batch)["loss"] for _ in range(30)]

    first = losses(1)
    assert first == losses(1) and first != losses(2) and len(set(first)) > 25
    # The mean of 4096 numbers that are 4/3 with probability 3/4.
    deviation = np.sqrt(1 / 3 / 4096)
    assert abs(np.mean(first) - 1) < 4 * deviation / np.sqrt(30)
    assert 0.5 * deviation < np.std(first) < 1.6 * deviation


def test_capture_and_training_need_no_tensorflow():
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import torch\n"
        "from cerebras_tf.torch_step.front_end import TorchModel\n"
        "from cerebras_tf.torch_step.training import TorchTraining\n"
        "module = torch.nn.Linear(3, 1)\n"
        "batch = {'input': torch.ones(4, 3)}\n"
        "optimizer = torch.optim.SGD(module.parameters(), lr=0.1)\n"
        "loss = lambda model, batch: model(**batch).square().mean()\n"
        "training = TorchTraining(TorchModel(module, batch, optimizer, loss))\n"
        "losses = [training.step(batch)['loss'] for _ in range(3)]\n"
        "assert losses[0] > losses[2]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
