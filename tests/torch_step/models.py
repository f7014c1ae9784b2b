"""Small models: seven kinds of network, each as a loss of a batch."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

NAMES = ["gpt2", "cnn", "encoder", "hf_bert", "hf_bert_qa", "hf_gpt2", "hf_llama"]
VOCABULARY = 211


class Block(nn.Module):
    """A decoder block with a causal mask."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.ln1(x)).split(width, dim=2)
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Decoder(nn.Module):
    """A language model whose output projection is its embedding."""

    def __init__(self, width=64, layers=2, heads=4, length=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids, labels):
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.reshape(-1))


class ConvNet(nn.Module):
    """Convolutions with batch normalization and pooling."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.classify = nn.Linear(16, 10)

    def forward(self, x, y):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        return F.cross_entropy(self.classify(F.adaptive_avg_pool2d(x, 1).flatten(1)), y)


class Encoder(nn.Module):
    """nn.TransformerEncoder with a mask of padding."""

    def __init__(self, width=32):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, dropout=0.0, activation="gelu", batch_first=True
        )
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 3)

    def forward(self, ids, mask, y):
        hidden = self.layers(self.embed(ids), src_key_padding_mask=mask)
        return F.cross_entropy(self.classify(hidden[:, 0]), y)


class Loss(nn.Module):
    """The loss of a model of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch).loss


def ids(generator, most, *shape):
    """Random token ids below `most`."""
    return torch.randint(0, most, shape, generator=generator)


def lengths_mask(*lengths):
    """Bool [B, max length]: whether a position is a real token."""
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def _bert(kind, generator):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def batch():
        given = {
            "input_ids": ids(generator, VOCABULARY, 3, 24),
            "attention_mask": lengths_mask(24, 15, 9).long(),
            "token_type_ids": ids(generator, 2, 3, 24),
        }
        if kind == "BertForSequenceClassification":
            return {**given, "labels": ids(generator, 2, 3)}
        ends = {name: ids(generator, 9, 3) for name in ("start_positions", "end_positions")}
        return {**given, **ends}

    return Loss(getattr(transformers, kind)(config)), batch


def _language_model(kind, generator, **settings):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, use_cache=False, bos_token_id=0, eos_token_id=0, **settings
    )
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"

    def batch():
        tokens = ids(generator, VOCABULARY, 2, 32)
        return {"input_ids": tokens, "labels": tokens}

    return Loss(getattr(transformers, name)(config)), batch


def _gpt2(generator):
    def batch():
        tokens = ids(generator, VOCABULARY, 2, 33)
        labels = tokens[:, 1:].clone()
        labels[0, :5] = -100
        return {"input_ids": tokens[:, :-1].contiguous(), "labels": labels}

    return Decoder(), batch


def _cnn(generator):
    def batch():
        images = torch.randn(4, 3, 16, 16, generator=generator)
        return {"x": images, "y": ids(generator, 10, 4)}

    return ConvNet(), batch


def _encoder(generator):
    def batch():
        mask = ~lengths_mask(12, 7, 9)
        return {"ids": ids(generator, VOCABULARY, 3, 12), "mask": mask, "y": ids(generator, 3, 3)}

    return Encoder(), batch


_MAKERS = {
    "gpt2": _gpt2,
    "cnn": _cnn,
    "encoder": _encoder,
    "hf_bert": functools.partial(_bert, "BertForSequenceClassification"),
    "hf_bert_qa": functools.partial(_bert, "BertForQuestionAnswering"),
    "hf_gpt2": functools.partial(
        _language_model,
        "GPT2",
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "hf_llama": functools.partial(
        _language_model,
        "Llama",
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    ),
}


def make(name):
    """A model in train mode, and a function that returns random batches."""
    torch.manual_seed(0)
    model, batch = _MAKERS[name](torch.Generator().manual_seed(1))
    return model.train(), batch
