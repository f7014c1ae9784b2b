"""RoBERTa of Hugging Face, with the head of masked words or none: names, forms and keys.

There position 0 is the row `pad_token_id` + 1 of its table, and the rows before it are no token's
(padding's, which nothing attends to). A model from there keeps those rows, as
`position_embedding_offset`; one of ours without them gets rows of zeros. It moves no tensor.
"""

from __future__ import annotations

from typing import Any

from modelzoo.common.convert.bert import (
    bert_tree,
    canonical_norm,
    checked_nonlinearity,
    encoder_config,
    encoder_rows,
    is_roberta,
    pooler_rows,
    sizes_of,
)
from modelzoo.common.convert.keys import refuse_ours, required, their_nonlinearity
from modelzoo.common.convert.layout import (
    SAME,
    Architecture,
    Layout,
    Preceded,
    Row,
    Zeros,
    dense,
    expand,
    norm,
)

HEAD = [
    *dense("lm_head.dense", "mlm_layer/mlm_ffn", "N N", group="mlm"),
    *norm("lm_head.layer_norm", "mlm_layer/mlm_layer_norm", group="mlm"),
    Row("lm_head.bias", ("mlm_layer/mlm_bias",), "V", group="mlm"),
]
COPIES = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
# Counts from 0 and zeros, which old files hold.
DROPPED = (r"roberta\.embeddings\.(position_ids|token_type_ids)",)
HEAD_NONLINEARITY = "gelu_exact"  # of lm_head, whatever hidden_act is


def layout(params):
    """Returns the Layout of a model."""
    rows, sizes = encoder_table(params)
    rows = [*rows, *pooler_rows("roberta", "pooler"), *HEAD]
    return Layout(expand(rows, sizes, params.model.num_hidden_layers), COPIES, DROPPED)


def encoder_table(params):
    """Returns the rows of a model's encoder and the sizes that they name."""
    model, sizes = params.model, sizes_of(params)
    positions: Any = SAME
    segments: Any = SAME
    if not model.position_embedding_offset:
        sizes["P"] += 1
        positions = Preceded(1)
    if not model.use_segment_embedding:
        sizes["S"] = 1
        segments = Zeros((1, model.hidden_size))
    return encoder_rows("roberta", positions, segments), sizes


def tree(config, where, names):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    nonlinearity = checked_nonlinearity(config, where)
    bert, keys = as_bert(config, where)
    found = bert_tree(bert, where, nonlinearity, has_nsp=False)
    found["model"] |= {**keys, "mlm_nonlinearity": HEAD_NONLINEARITY}
    return found


def as_bert(config, where):
    """Returns a config.json as that of a BERT, and the keys of our model by which it is none."""
    offset = required({"pad_token_id": 1, **config}, "pad_token_id", where) + 1
    positions = required(config, "max_position_embeddings", where) - offset
    bert = {**config, "max_position_embeddings": positions, "type_vocab_size": 2}
    keys = {"position_embedding_offset": offset, "num_segments": config.get("type_vocab_size", 2)}
    return bert, keys


def config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    model, has_mlm = params.model, "mlm_layer/mlm_bias" in names
    name = "RobertaForMaskedLM" if has_mlm else "RobertaModel"
    theirs = f"Hugging Face's {name}"
    if has_mlm:
        given = model.mlm_nonlinearity or model.activation
        refuse_ours("mlm_nonlinearity", given, HEAD_NONLINEARITY, where, theirs)
    return model_config(params, where, name)


def model_config(params, where, name):
    """Returns what the config.json of every class holds."""
    model, theirs = params.model, f"Hugging Face's {name}"
    nonlinearity = their_nonlinearity(model.activation, "gelu_new", where)
    offset = model.position_embedding_offset or 1
    return {
        "model_type": "roberta",
        "architectures": [name],
        **encoder_config(params, where, nonlinearity, theirs),
        "max_position_embeddings": params.max_position_embeddings + offset,
        "type_vocab_size": model.num_segments if model.use_segment_embedding else 1,
        "pad_token_id": offset - 1,
    }


def canonical(name):
    """Adds the prefix that RobertaModel's files leave out; names norms as newer files do."""
    name = canonical_norm(name)
    return name if name.startswith(("roberta.", "lm_head.")) else f"roberta.{name}"


def is_ours(params):
    """Tells whether a pre-training of ours is RoBERTa's: it does not predict the next sentence."""
    return params.model.disable_nsp and is_roberta(params.model)


ROBERTA = Architecture(
    "roberta",
    "bert",
    layout,
    tree,
    config,
    canonical,
    classes=("RobertaForMaskedLM", "RobertaModel"),
    is_ours=is_ours,
)
