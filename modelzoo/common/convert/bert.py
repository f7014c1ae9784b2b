"""BERT of Hugging Face, with any head of pre-training or none: names, forms and keys.

Its encoder's rows and keys serve RoBERTa and the fine-tuned models too. It moves no tensor.
"""

import re

from modelzoo.common.convert.keys import (
    PLACEHOLDER_DATA_DIR,
    PLACEHOLDER_OPTIMIZER,
    our_nonlinearity,
    rate_of,
    refuse_others,
    refuse_ours,
    required,
    their_nonlinearity,
)
from modelzoo.common.convert.layout import (
    SAME,
    Architecture,
    Layout,
    Row,
    Zeros,
    dense,
    expand,
    norm,
)

ATTENTION = "encoder/self_attention{_i}"
TRANSFORM = "cls.predictions.transform"
SEGMENTS = 2


def encoder_rows(root, positions=SAME, segments=SAME):
    """Returns the rows of an encoder.

    V vocabulary, P rows of positions, S segments, N hidden size, F filter size, C classes. A group
    of rows is there if the model has that head.

    Args:
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
    refuse_others(
        config,
        where,
        {
            "position_embedding_type": "absolute",
            "is_decoder": False,
            "add_cross_attention": False,
            "tie_word_embeddings": True,
        },
    )
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
        "hidden_size": required(config, "hidden_size", where),
        "num_hidden_layers": required(config, "num_hidden_layers", where),
        "num_heads": required(config, "num_attention_heads", where),
        "filter_size": required(config, "intermediate_size", where),
        "max_position_embeddings": required(config, "max_position_embeddings", where),
        "use_position_embedding": True,
        "use_segment_embedding": True,
        "share_embedding_weights": True,
        "nonlinearity": nonlinearity,
        "dropout_rate": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout_rate": config.get("attention_probs_dropout_prob", 0.1),
        "layer_norm_epsilon": config.get("layer_norm_eps", 1e-12),
        "mixed_precision": False,
    }


def whole_tree(model_name, data, model):
    """Returns our YAML's dictionary of its sections ``train_input`` and ``model``."""
    return {
        "model_name": model_name,
        "train_input": data,
        "eval_input": {key: data[key] for key in ("data_processor", "data_dir", "batch_size")},
        "model": model,
        "optimizer": dict(PLACEHOLDER_OPTIMIZER),
        "runconfig": {"max_steps": 1000, "eval_steps": 0},
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
    wanted = {
        "use_segment_embedding": True,
        "position_embedding_offset": 0,
        "num_segments": SEGMENTS,
    }
    for key, value in wanted.items():
        refuse_ours(key, getattr(model, key), value, where, theirs)
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
    wanted = {
        "use_position_embedding": True,
        "position_embedding_type": "learned",
        "attention_type": "scaled_dot_product",
        "use_projection_bias_in_attention": True,
        "use_ffn_bias_in_attention": True,
        "use_ffn_bias": True,
        "nsp_nonlinearity": "tanh",
    }
    for key, value in wanted.items():
        refuse_ours(key, getattr(model, key), value, where, theirs)
    hidden_size = model.hidden_size
    refuse_ours("embedding_size", model.embedding_size or hidden_size, hidden_size, where, theirs)
    rate = rate_of(model, "embedding_dropout_rate")
    refuse_ours("embedding_dropout_rate", rate, model.dropout_rate, where, theirs)
    return {
        "vocab_size": params.vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.filter_size,
        "hidden_act": nonlinearity,
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": model.attention_dropout_rate,
        "layer_norm_eps": model.layer_norm_epsilon,
    }


def canonical(name):
    """Adds the prefix that BertModel's files leave out; names norms as newer files do."""
    name = canonical_norm(name)
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"


def canonical_norm(name):
    """Names norms as newer files do."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


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


def is_roberta(model):
    """Tells whether an encoder of ours is RoBERTa's: no two segments, or positions of no token."""
    segments = model.num_segments if model.use_segment_embedding else 1
    return segments == 1 or model.position_embedding_offset > 0
