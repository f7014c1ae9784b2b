"""Small folders of transformers, of random weights."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is an extra")

VOCABULARY = 97
_DECODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
_SETTINGS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _DECODER),
    "qwen": (
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**_DECODER, "tie_word_embeddings": True, "head_dim": 8},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "neox": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {key: _DECODER[key] for key in _DECODER if key != "num_key_value_heads"},
    ),
    "bert": (
        "BertForMaskedLM",
        "BertConfig",
        {key: _DECODER[key] for key in _DECODER if key != "num_key_value_heads"},
    ),
}
NAMES = list(_SETTINGS)
_NO_DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")
_NO_DROPOUT += ("hidden_dropout_prob", "attention_probs_dropout_prob")


def made(name, seed=0):
    """A model of random weights, biases and norms included."""
    kind, config, settings = _SETTINGS[name]
    base = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "bos_token_id": 0}
    found = getattr(transformers, config)(**{**base, "eos_token_id": 1, **settings})
    for key in _NO_DROPOUT:
        if hasattr(found, key):
            setattr(found, key, 0.0)
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(found)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    return model


def write(name, folder, dtype="float32", max_shard_size="5GB", seed=0):
    """Writes a folder, with files as of a tokenizer."""
    shutil.rmtree(folder, ignore_errors=True)
    model = made(name, seed).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "training_args.bin").write_bytes(b"state")
    return folder


def loaded(folder, kind=None):
    """The model as transformers loads it, in float32."""
    auto = getattr(transformers, kind or _kind(folder))
    return auto.from_pretrained(folder, dtype=torch.float32).train()


def _kind(folder):
    return json.loads((folder / "config.json").read_text())["architectures"][0]


def batch(number=0, rows=2, length=12):
    """Random tokens as input and labels."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, VOCABULARY, (rows, length), generator=generator)
    return {"input_ids": tokens, "labels": tokens.clone()}
