"""BERT of Hugging Face, with any of its heads or none: names, forms and keys. Moves no tensor."""

from __future__ import annotations

import re

from modelzoo.common.checkpoints.keys import (
    PLACEHOLDER_DATA_DIR,
    PLACEHOLDER_OPTIMIZER,
    our_nonlinearity,
    rate_of,
    refuse_other,
    refuse_others,
    required,
    their_nonlinearity,
)
from modelzoo.common.checkpoints.layout import Architecture, Layout, Row, dense, expand, norm

EMBEDDINGS = "bert.embeddings"
ATTENTION = "encoder/self_attention{_i}"
BLOCK = "bert.encoder.layer.{i}"
TRANSFORM = "cls.predictions.transform"
# V vocabulary, P positions, S segments, N hidden size, F filter size, C classes. A group of rows
# is there if the model has that head: BertModel has the pooler, BertForMaskedLM has mlm,
# BertForPreTraining has all.
TABLE = [
    Row(f"{EMBEDDINGS}.word_embeddings.weight", ("input_embedding/embedding_weights",), "V N"),
    Row(
        f"{EMBEDDINGS}.position_embeddings.weight",
        ("position_embedding/position_embedding_weights",),
        "P N",
    ),
    Row(
        f"{EMBEDDINGS}.token_type_embeddings.weight",
        ("segment_embedding/segment_embedding_weights",),
        "S N",
    ),
    *norm(f"{EMBEDDINGS}.LayerNorm", "pre_encoder_layer_norm"),
    *dense(f"{BLOCK}.attention.self.query", f"{ATTENTION}/q_projection", "N N"),
    *dense(f"{BLOCK}.attention.self.key", f"{ATTENTION}/k_projection", "N N"),
    *dense(f"{BLOCK}.attention.self.value", f"{ATTENTION}/v_projection", "N N"),
    *dense(f"{BLOCK}.attention.output.dense", f"{ATTENTION}/output_transform", "N N"),
    *norm(f"{BLOCK}.attention.output.LayerNorm", "encoder/layer_normalization_layer{_2i}"),
    *dense(f"{BLOCK}.intermediate.dense", "encoder/ffn{_i}/dense_layer{_2i}", "F N"),
    *dense(f"{BLOCK}.output.dense", "encoder/ffn{_i}/dense_layer{_2i+1}", "N F"),
    *norm(f"{BLOCK}.output.LayerNorm", "encoder/layer_normalization_layer{_2i+1}"),
    *dense("bert.pooler.dense", "cls_layer/cls_dense", "N N", group="pooler"),
    *dense("cls.seq_relationship", "cls_layer/cls_output_dense", "C N", group="nsp"),
    *dense(f"{TRANSFORM}.dense", "mlm_layer/mlm_ffn", "N N", group="mlm"),
    *norm(f"{TRANSFORM}.LayerNorm", "mlm_layer/mlm_layer_norm", group="mlm"),
    Row("cls.predictions.bias", ("mlm_layer/mlm_bias",), "V", group="mlm"),
]
COPIES = {
    "cls.predictions.decoder.weight": f"{EMBEDDINGS}.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
DROPPED = (r"bert\.embeddings\.(position_ids|token_type_ids)",)
SEGMENTS = 2


def sizes_of(params):
    """Returns the number by dimension of a table."""
    model = params.model
    return {
        "V": params.vocab_size,
        "P": params.max_position_embeddings,
        "S": SEGMENTS,
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
    nonlinearity = our_nonlinearity(config, "hidden_act", "gelu", where)
    has_nsp = any(name.startswith("cls.seq_relationship.") for name in names)
    return bert_tree(config, where, nonlinearity, has_nsp)


def bert_tree(config, where, nonlinearity, has_nsp):
    """Returns our YAML's dictionary of a config.json, or of a bert_config.json.

    Args:
        config: the configuration.
        where: its path.
        nonlinearity: our name of the activation.
        has_nsp: whether the model predicts the next sentence.
    """
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
    return {
        "model_name": "bert",
        "train_input": data,
        "eval_input": {key: data[key] for key in ("data_processor", "data_dir", "batch_size")},
        "model": {
            "hidden_size": required(config, "hidden_size", where),
            "num_hidden_layers": required(config, "num_hidden_layers", where),
            "num_heads": required(config, "num_attention_heads", where),
            "filter_size": required(config, "intermediate_size", where),
            "max_position_embeddings": positions,
            "use_position_embedding": True,
            "use_segment_embedding": True,
            "share_embedding_weights": True,
            "disable_nsp": not has_nsp,
            "nonlinearity": nonlinearity,
            "dropout_rate": config.get("hidden_dropout_prob", 0.1),
            "attention_dropout_rate": config.get("attention_probs_dropout_prob", 0.1),
            "layer_norm_epsilon": config.get("layer_norm_eps", 1e-12),
            "mixed_precision": False,
        },
        "optimizer": dict(PLACEHOLDER_OPTIMIZER),
        "runconfig": {"max_steps": 1000, "eval_steps": 0},
    }


def config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    nonlinearity = their_nonlinearity(params.model.activation, "gelu_new", where)
    has_mlm, has_nsp = ("mlm_layer/mlm_bias" in names, "cls_layer/cls_output_dense" in str(names))
    with_mlm = "BertForPreTraining" if has_nsp else "BertForMaskedLM"
    return {
        "model_type": "bert",
        "architectures": [with_mlm if has_mlm else "BertModel"],
        **bert_config(params, where, nonlinearity),
    }


def bert_config(params, where, nonlinearity):
    """Returns the keys that config.json and bert_config.json share."""
    model = params.model
    wanted = {
        "use_position_embedding": True,
        "use_segment_embedding": True,
        "share_embedding_weights": True,
        "attention_type": "scaled_dot_product",
        "use_projection_bias_in_attention": True,
        "use_ffn_bias_in_attention": True,
        "use_ffn_bias": True,
        "nsp_nonlinearity": "tanh",
        "num_cls_classes": 2,
    }
    for key, value in wanted.items():
        refuse_other(key, getattr(model, key), value, where)
    hidden_size = model.hidden_size
    refuse_other("embedding_size", model.embedding_size or hidden_size, hidden_size, where)
    mlm_nonlinearity = model.mlm_nonlinearity or model.activation
    refuse_other("mlm_nonlinearity", mlm_nonlinearity, model.activation, where)
    rate = rate_of(model, "embedding_dropout_rate")
    refuse_other("embedding_dropout_rate", rate, model.dropout_rate, where)
    return {
        "vocab_size": params.vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.filter_size,
        "max_position_embeddings": params.max_position_embeddings,
        "type_vocab_size": SEGMENTS,
        "hidden_act": nonlinearity,
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": model.attention_dropout_rate,
        "layer_norm_eps": model.layer_norm_epsilon,
    }


def canonical(name):
    """Adds the prefix that BertModel's files leave out; names norms as newer files do."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"


BERT = Architecture("bert", "bert", layout, tree, config, canonical)
