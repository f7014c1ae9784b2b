"""BERT and RoBERTa of Hugging Face, with any head of pre-training or none, and BERT of Google.

It moves no tensor. V vocabulary, P rows of positions, S segments, N hidden size, F filter size, C
classes. A group of rows is there if the model has that head.
"""

import re
from typing import Any

from modelzoo.common.convert.keys import (
    PLACEHOLDER_DATA_DIR,
    REQUIRED,
    our_nonlinearity,
    rate_of,
    read_keys,
    refuse_others,
    refuse_ours,
    refuse_variants,
    required,
    their_nonlinearity,
    whole_tree,
    write_keys,
)
from modelzoo.common.convert.layout import (
    SAME,
    TRANSPOSED,
    Architecture,
    Layout,
    Preceded,
    Row,
    Zeros,
    dense,
    expand,
    norm,
)

ATTENTION = "encoder/self_attention{_i}"
TRANSFORM = "cls.predictions.transform"
SEGMENTS = 2
KEYS = (
    ("hidden_size", "hidden_size", REQUIRED),
    ("num_hidden_layers", "num_hidden_layers", REQUIRED),
    ("num_attention_heads", "num_heads", REQUIRED),
    ("intermediate_size", "filter_size", REQUIRED),
    ("hidden_dropout_prob", "dropout_rate", 0.1),
    ("attention_probs_dropout_prob", "attention_dropout_rate", 0.1),
    ("layer_norm_eps", "layer_norm_epsilon", 1e-12),
)
# Variants of Hugging Face's encoder, and of ours, that the other lacks.
THEIR_ONLY = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
OUR_ONLY = {
    "use_position_embedding": True,
    "position_embedding_type": "learned",
    "attention_type": "scaled_dot_product",
    "use_projection_bias_in_attention": True,
    "use_ffn_bias_in_attention": True,
    "use_ffn_bias": True,
    "nsp_nonlinearity": "tanh",
}
# Of BERT, not of RoBERTa.
BERT_ONLY = {
    "use_segment_embedding": True,
    "position_embedding_offset": 0,
    "num_segments": SEGMENTS,
}


# ---- BERT


def encoder_rows(root, positions=SAME, segments=SAME):
    """Returns the rows of an encoder.

    Args:
        root: first part of their names.
        positions: form of the table of positions.
        segments: form of the table of segments; Zeros where ours has none.
    """
    embeddings, block = f"{root}.embeddings", f"{root}.encoder.layer.{{i}}"
    position_table = ("position_embedding/position_embedding_weights",)
    has_segments = not isinstance(segments, Zeros)
    segment_table = ("segment_embedding/segment_embedding_weights",) if has_segments else ()
    return [
        Row(f"{embeddings}.word_embeddings.weight", ("input_embedding/embedding_weights",), "V N"),
        Row(f"{embeddings}.position_embeddings.weight", position_table, "P N", positions),
        Row(f"{embeddings}.token_type_embeddings.weight", segment_table, "S N", segments),
        *norm(f"{embeddings}.LayerNorm", "pre_encoder_layer_norm"),
        *dense(f"{block}.attention.self.query", f"{ATTENTION}/q_projection", "N N"),
        *dense(f"{block}.attention.self.key", f"{ATTENTION}/k_projection", "N N"),
        *dense(f"{block}.attention.self.value", f"{ATTENTION}/v_projection", "N N"),
        *dense(f"{block}.attention.output.dense", f"{ATTENTION}/output_transform", "N N"),
        *norm(f"{block}.attention.output.LayerNorm", "encoder/layer_normalization_layer{_2i}"),
        *dense(f"{block}.intermediate.dense", "encoder/ffn{_i}/dense_layer{_2i}", "F N"),
        *dense(f"{block}.output.dense", "encoder/ffn{_i}/dense_layer{_2i+1}", "N F"),
        *norm(f"{block}.output.LayerNorm", "encoder/layer_normalization_layer{_2i+1}"),
    ]


def pooler_rows(root, group=None):
    """Returns the rows of the dense layer over the first token."""
    return dense(f"{root}.pooler.dense", "cls_layer/cls_dense", "N N", group=group)


# BertModel has the pooler, BertForMaskedLM has mlm, BertForPreTraining has all.
TABLE = [
    *encoder_rows("bert"),
    *pooler_rows("bert", "pooler"),
    *dense("cls.seq_relationship", "cls_layer/cls_output_dense", "C N", group="nsp"),
    *dense(f"{TRANSFORM}.dense", "mlm_layer/mlm_ffn", "N N", group="mlm"),
    *norm(f"{TRANSFORM}.LayerNorm", "mlm_layer/mlm_layer_norm", group="mlm"),
    Row("cls.predictions.bias", ("mlm_layer/mlm_bias",), "V", group="mlm"),
]
COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# Counts from 0 and zeros, which old files hold.
DROPPED = (r"bert\.embeddings\.(position_ids|token_type_ids)",)
# Their class by whether it has the heads mlm and nsp.
CLASSES = {
    (True, True): "BertForPreTraining",
    (True, False): "BertForMaskedLM",
    (False, True): "BertForNextSentencePrediction",
    (False, False): "BertModel",
}


def sizes_of(params):
    """Returns the number by dimension of a table."""
    model = params.model
    return {
        "V": params.vocab_size,
        "P": params.max_position_embeddings + model.position_embedding_offset,
        "S": model.num_segments,
        "N": model.hidden_size,
        "F": model.filter_size,
        "C": model.num_cls_classes,
    }


def layout(params):
    """Returns the Layout of a model."""
    links = expand(TABLE, sizes_of(params), params.model.num_hidden_layers)
    return Layout(links, COPIES, DROPPED)


def tree(config, where, names):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    has_nsp = any(name.startswith("cls.seq_relationship.") for name in names)
    return bert_tree(config, where, checked_nonlinearity(config, where), has_nsp)


def checked_nonlinearity(config, where):
    """Refuses variants of Hugging Face's encoder that this zoo lacks; returns our activation."""
    refuse_others(config, where, THEIR_ONLY)
    return our_nonlinearity(config, "hidden_act", "gelu", where)


def bert_tree(config, where, nonlinearity, has_nsp):
    """Returns our YAML's dictionary of a config.json, or of a bert_config.json."""
    refuse_others(config, where, {"type_vocab_size": SEGMENTS})
    positions = required(config, "max_position_embeddings", where)
    kind = "BertTfRecordsProcessor" if has_nsp else "BertMlmOnlyTfRecordsStaticMaskProcessor"
    data = {
        "data_processor": kind,
        "data_dir": PLACEHOLDER_DATA_DIR,
        "vocab_size": required(config, "vocab_size", where),
        "max_sequence_length": positions,
        "max_predictions_per_seq": max(1, round(0.15 * positions)),
        "batch_size": 1,
    }
    model = {**encoder_section(config, where, nonlinearity), "disable_nsp": not has_nsp}
    return whole_tree("bert", data, model)


def encoder_section(config, where, nonlinearity):
    """Returns the section ``model`` that all BERTs share; see `bert_tree`."""
    return {
        **read_keys(config, where, KEYS),
        "max_position_embeddings": required(config, "max_position_embeddings", where),
        "use_position_embedding": True,
        "use_segment_embedding": True,
        "share_embedding_weights": True,
        "nonlinearity": nonlinearity,
    }


def config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    heads = ("mlm_layer/mlm_bias" in names, "cls_layer/cls_output_dense" in str(names))
    theirs = f"Hugging Face's {CLASSES[heads]}"
    nonlinearity = their_nonlinearity(params.model.activation, "gelu_new", where)
    refuse_ours("num_cls_classes", params.model.num_cls_classes, 2, where, theirs)
    return {
        "model_type": "bert",
        "architectures": [CLASSES[heads]],
        **bert_config(params, where, nonlinearity, theirs),
    }


def bert_config(params, where, nonlinearity, theirs):
    """Returns the keys that config.json and bert_config.json share."""
    model = params.model
    refuse_variants(model, BERT_ONLY, where, theirs)
    mlm_nonlinearity = model.mlm_nonlinearity or model.activation
    refuse_ours("mlm_nonlinearity", mlm_nonlinearity, model.activation, where, theirs)
    return {
        **encoder_config(params, where, nonlinearity, theirs),
        "max_position_embeddings": params.max_position_embeddings,
        "type_vocab_size": SEGMENTS,
    }


def encoder_config(params, where, nonlinearity, theirs):
    """Returns the keys of all encoders but those of positions and segments; see `bert_config`."""
    model = params.model
    refuse_variants(model, OUR_ONLY, where, theirs)
    if model.embedding_size is not None:
        refuse_ours("embedding_size", model.embedding_size, model.hidden_size, where, theirs)
    rate = rate_of(model, "embedding_dropout_rate")
    refuse_ours("embedding_dropout_rate", rate, model.dropout_rate, where, theirs)
    return {"vocab_size": params.vocab_size, "hidden_act": nonlinearity, **write_keys(model, KEYS)}


def canonical(name):
    """Adds the prefix that BertModel's files leave out; names norms as newer files do."""
    name = canonical_norm(name)
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"


def canonical_norm(name):
    """Names norms as newer files do."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def is_roberta(model):
    """Whether an encoder of ours is RoBERTa's: no two segments, or positions of no token."""
    segments = model.num_segments if model.use_segment_embedding else 1
    return segments == 1 or model.position_embedding_offset > 0


BERT = Architecture(
    "bert",
    "bert",
    layout,
    tree,
    config,
    canonical,
    classes=tuple(CLASSES.values()),
    is_ours=lambda params: not (params.model.disable_nsp and is_roberta(params.model)),
)

# ---- RoBERTa
#
# There position 0 is the row `pad_token_id` + 1 of its table, and the rows before it are no token's
# (padding's, which nothing attends to). A model from there keeps those rows, as
# `position_embedding_offset`; one of ours without them gets rows of zeros.

ROBERTA_HEAD = [
    *dense("lm_head.dense", "mlm_layer/mlm_ffn", "N N", group="mlm"),
    *norm("lm_head.layer_norm", "mlm_layer/mlm_layer_norm", group="mlm"),
    Row("lm_head.bias", ("mlm_layer/mlm_bias",), "V", group="mlm"),
]
ROBERTA_COPIES = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
ROBERTA_DROPPED = (r"roberta\.embeddings\.(position_ids|token_type_ids)",)
HEAD_NONLINEARITY = "gelu_exact"  # of lm_head, whatever hidden_act is


def roberta_layout(params):
    """Returns the Layout of a model."""
    rows, sizes = roberta_table(params)
    rows = [*rows, *pooler_rows("roberta", "pooler"), *ROBERTA_HEAD]
    links = expand(rows, sizes, params.model.num_hidden_layers)
    return Layout(links, ROBERTA_COPIES, ROBERTA_DROPPED)


def roberta_table(params):
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


def roberta_tree(config, where, names):
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


def roberta_config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    model, has_mlm = params.model, "mlm_layer/mlm_bias" in names
    name = "RobertaForMaskedLM" if has_mlm else "RobertaModel"
    if has_mlm:
        given = model.mlm_nonlinearity or model.activation
        theirs = f"Hugging Face's {name}"
        refuse_ours("mlm_nonlinearity", given, HEAD_NONLINEARITY, where, theirs)
    return roberta_model_config(params, where, name)


def roberta_model_config(params, where, name):
    """Returns what the config.json of the class `name` holds without its head."""
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


def roberta_canonical(name):
    """Adds the prefix that RobertaModel's files leave out; names norms as newer files do."""
    name = canonical_norm(name)
    return name if name.startswith(("roberta.", "lm_head.")) else f"roberta.{name}"


ROBERTA = Architecture(
    "roberta",
    "bert",
    roberta_layout,
    roberta_tree,
    roberta_config,
    roberta_canonical,
    classes=("RobertaForMaskedLM", "RobertaModel"),
    # It does not predict the next sentence.
    is_ours=lambda params: params.model.disable_nsp and is_roberta(params.model),
)

# ---- BERT of google-research/bert, as its TensorFlow checkpoints name it
#
# Its dense layers are kept as ours are, but for the two rows of the next sentence's classifier. Its
# ``gelu`` is the tanh approximation, as modeling.py there computes it. The optimizer's variables
# are dropped, and the global step is carried over by itself.

GOOGLE_DROPPED = (r".*/adam_[mv]", "global_step")


def _google_rows():
    """Returns the rows of Google's BERT: those of Hugging Face's under other names and forms."""
    rows = []
    for row in TABLE:
        name = re.sub(r"encoder\.layer\.", "encoder/layer_", row.theirs).replace(".", "/")
        form, shape = row.form, row.shape
        if name == "cls/predictions/bias":
            name = "cls/predictions/output_bias"
        elif name.startswith("cls/seq_relationship/"):
            name = f"cls/seq_relationship/output_{name.split('/')[-1].replace('weight', 'weights')}"
        elif "_embeddings/" in name:
            name = name.removesuffix("/weight")
        elif "/LayerNorm/" in name:
            name = name.replace("/weight", "/gamma").replace("/bias", "/beta")
        elif form is TRANSPOSED:
            name, form = name.replace("/weight", "/kernel"), SAME
            shape = " ".join(reversed(shape.split()))
        rows.append(Row(name, row.ours, shape, form, row.group))
    return rows


def google_layout(params):
    """Returns the Layout of a model."""
    links = expand(_google_rows(), sizes_of(params), params.model.num_hidden_layers)
    return Layout(links, {}, GOOGLE_DROPPED)


def google_tree(config, where, names):
    """Returns our YAML's dictionary of a bert_config.json; see Architecture."""
    refuse_others(config, where, {"hidden_act": "gelu"})
    has_nsp = any(name.startswith("cls/seq_relationship/") for name in names)
    return bert_tree(config, where, "gelu", has_nsp)


def google_config(params, where, names):
    """Returns the bert_config.json of our parameters; see Architecture."""
    model, theirs = params.model, "Google's BERT"
    key = "encoder_nonlinearity" if model.encoder_nonlinearity else "nonlinearity"
    refuse_ours(key, model.activation, "gelu", where, theirs)
    refuse_ours("num_cls_classes", model.num_cls_classes, 2, where, theirs)
    return bert_config(params, where, "gelu", theirs)


GOOGLE_BERT = Architecture(
    "google_bert", "bert", google_layout, google_tree, google_config, lambda name: name
)
