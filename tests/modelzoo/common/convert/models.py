"""Small models of every architecture for tests: configurations, and folders of random tensors.

It uses neither PyTorch nor transformers, so that most tests need neither.
"""

from __future__ import annotations

import json

import numpy as np

from modelzoo.common.config import registry
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.convert.bert import BERT, ROBERTA
from modelzoo.common.convert.bert_fine_tuning import (
    BERT_CLASSIFIER,
    BERT_QUESTION_ANSWERING,
    BERT_TOKEN_CLASSIFIER,
    ROBERTA_CLASSIFIER,
    ROBERTA_QUESTION_ANSWERING,
    ROBERTA_TOKEN_CLASSIFIER,
)
from modelzoo.common.convert.gpt import GPT2, GPT_NEOX, GPTJ
from modelzoo.common.convert.hugging_face import write_hugging_face

BERT_SIZES = {
    "vocab_size": 13,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 7,
    "type_vocab_size": 2,
}
GPT_SIZES = {
    "vocab_size": 13,
    "n_positions": 7,
    "n_embd": 8,
    "n_layer": 3,
    "n_head": 2,
    "n_inner": 12,
}
NEOX_SIZES = {**BERT_SIZES, "hidden_size": 32, "rotary_pct": 0.25, "rotary_emb_base": 10000}
del NEOX_SIZES["type_vocab_size"]
FINE_TUNED = {"model_type": "bert", **BERT_SIZES, "max_position_embeddings": 9}
FINE_TUNED_ROBERTA = {
    **FINE_TUNED,
    "model_type": "roberta",
    "max_position_embeddings": 11,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
LABELS = {"0": "no", "1": "perhaps", "2": "yes"}
# Architecture and configuration by name of the case.
CASES = {
    "gpt2": (GPT2, {"model_type": "gpt2", **GPT_SIZES}),
    "gpt2_untied": (GPT2, {"model_type": "gpt2", **GPT_SIZES, "tie_word_embeddings": False}),
    "gptj": (GPTJ, {"model_type": "gptj", **GPT_SIZES, "rotary_dim": 2}),
    "gptj_tied": (
        GPTJ,
        {"model_type": "gptj", **GPT_SIZES, "rotary_dim": 4, "tie_word_embeddings": True},
    ),
    "gpt_neox": (GPT_NEOX, {"model_type": "gpt_neox", **NEOX_SIZES}),
    "gpt_neox_serial": (
        GPT_NEOX,
        {
            "model_type": "gpt_neox",
            **NEOX_SIZES,
            "use_parallel_residual": False,
            "rotary_emb_base": 500.0,
        },
    ),
    "gpt2_by_layer": (
        GPT2,
        {"model_type": "gpt2", **GPT_SIZES, "scale_attn_by_inverse_layer_idx": True},
    ),
    "bert": (BERT, {"model_type": "bert", **BERT_SIZES}),
    "roberta": (
        ROBERTA,
        {"model_type": "roberta", **BERT_SIZES, "type_vocab_size": 1, "pad_token_id": 1},
    ),
    "bert_classifier": (BERT_CLASSIFIER, {**FINE_TUNED, "id2label": LABELS}),
    "bert_token_classifier": (BERT_TOKEN_CLASSIFIER, {**FINE_TUNED, "id2label": LABELS}),
    "bert_question_answering": (BERT_QUESTION_ANSWERING, FINE_TUNED),
    "roberta_classifier": (ROBERTA_CLASSIFIER, {**FINE_TUNED_ROBERTA, "id2label": LABELS}),
    "roberta_token_classifier": (
        ROBERTA_TOKEN_CLASSIFIER,
        {**FINE_TUNED_ROBERTA, "id2label": LABELS},
    ),
    "roberta_question_answering": (ROBERTA_QUESTION_ANSWERING, FINE_TUNED_ROBERTA),
}


def params_of(name, names=("cls.seq_relationship.weight",)):
    """Our parameters of a case."""
    architecture, config = CASES[name]
    tree = architecture.tree(config, "config.json", names)
    return params_from_dict(registry.params_class(architecture.model_name, "test"), tree, "test")


def layout_of(name):
    """The layout of a case."""
    return CASES[name][0].layout(params_of(name))


def random_tensors(shapes, seed=0):
    """Standard normal float32 arrays by name."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}


def write_model(folder, name, leave_out=("none",), extra=None, **config):
    """Writes a random model of a case as Hugging Face does. Returns its tensors by name."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {link.theirs: link.shape for link in layout_of(name).links}
    tensors = random_tensors({k: v for k, v in shapes.items() if not k.startswith(leave_out)})
    tensors.update(extra or {})
    shapes = {key: value.shape for key, value in tensors.items()}
    write_hugging_face(folder, {**CASES[name][1], **config}, shapes, tensors.items())
    return tensors


def change_config(folder, **changes):
    """Changes keys of a folder's config.json."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps(config), encoding="utf-8")
