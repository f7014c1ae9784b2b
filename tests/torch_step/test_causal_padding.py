"""Padding of causal language models of transformers: removed where results do not change."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
transformers = pytest.importorskip("transformers")

from torch.nn.functional import cross_entropy

from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.settings import TrainingSettings
from cerebras_tf.torch_step.training import Reports, TorchTraining
from tests.torch_step.eager import GRADIENT, LOSS, train
from tests.torch_step.models import VOCABULARY, Loss, ids, lengths_mask

LENGTHS = (16, 5, 11, 1)
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES |= {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def made(kind, attention="sdpa", **others):
    torch.manual_seed(0)
    sizes = GPT2 if kind == "gpt2" else SIZES
    config = transformers.AutoConfig.for_model(kind, use_cache=False, **{**sizes, **others})
    auto = transformers.AutoModelForCausalLM
    return Loss(auto.from_config(config, attn_implementation=attention)).train()


def batch(seed=0, left=False, counted=False, lengths=LENGTHS):
    """Sequences padded to one length; labels of padding are -100 unless it is `counted`.

    So is that of the first token, which padding before it would predict.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = lengths_mask(*lengths)
    if left:
        mask = mask.flip(1)
    tokens = ids(generator, VOCABULARY, *mask.shape)
    real = mask & mask.roll(1, 1) if left else mask
    labels = tokens if counted else torch.where(real, tokens, -100)
    return {"input_ids": tokens, "attention_mask": mask.long(), "labels": labels}


def packs(module, example, lines=None, **settings):
    """Whether padding is removed from a batch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    reports = None if lines is None else Reports(lines.append)
    model = TorchModel(module, example, optimizer)
    training = TorchTraining(model, TrainingSettings(**settings), reports=reports)
    training.step(example)
    found = training.program.packing is not None
    training.close()
    return found


MODELS = [
    ("llama", {}),
    ("llama", {"attention": "eager"}),
    ("gpt2", {}),
    ("qwen3", {}),
    ("mistral", {"sliding_window": 40}),
    (
        "gemma3_text",
        {
            "num_hidden_layers": 2,
            "sliding_window": 40,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
]


@pytest.mark.parametrize(
    "kind,settings,left", [*((*each, False) for each in MODELS), ("llama", {}, True)], ids=str
)
def test_losses_and_gradients_equal_eager_without_padding(kind, settings, left):
    """Of both sides by one capture, which begins with one of them."""
    module = made(kind, **settings)
    batches = [batch(0, left), batch(1, not left), batch(2, left, lengths=(9, 20, 20))]
    found, training = train(module, batches, torch.optim.SGD(module.parameters(), lr=0.01))
    assert found.loss <= LOSS and found.gradient <= GRADIENT, found
    assert training.program.packing is not None
    assert {i.op for i in training.program.instructions()} >= {"packed_attention"}


@pytest.mark.parametrize(
    "settings,given,fact",
    [
        ({}, {"counted": True}, "multiplies padding"),
        ({"sliding_window": 8}, {}, "sees 8 tokens"),
        ({}, {"lengths": (4, 0)}, "sequence 1"),
    ],
    ids=str,
)
def test_padding_is_computed_and_logged_where_a_batch_reads_it(settings, given, fact):
    module, lines = made("mistral", **settings), []
    assert not packs(module, batch(**given), lines)
    assert any(fact in line and "padding is not removed" in line for line in lines), lines
    found, _ = train(module, [batch(1, **given), batch(2), batch(3, left=True)])
    assert found.loss <= LOSS and found.gradient <= GRADIENT, found


def test_dropout_in_attention_keeps_padding_before_tokens():
    module, lines = made("gpt2", attn_pdrop=0.1), []
    assert packs(module, batch(), lines) and not lines
    assert not packs(module, batch(left=True), lines)
    assert "padding before real tokens" in " ".join(lines)


class Shifted(torch.nn.Module):
    """A loss as training loops have it: of all logits but the last."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, labels, **given):
        logits = self.model(**given).logits[:, :-1].contiguous()
        labels = labels[:, 1:].contiguous()
        return cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def test_logits_may_be_shifted():
    module = Shifted(made("llama").model)
    batches = [batch(0), batch(1, left=True), batch(2, lengths=(9, 20, 20))]
    found, training = train(module, batches)
    assert found.loss <= LOSS and found.gradient <= GRADIENT, found
    assert training.program.packing is not None


def test_remove_padding_false_computes_padding():
    assert not packs(made("llama"), batch(), remove_padding=False)
