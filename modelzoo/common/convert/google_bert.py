"""BERT of google-research/bert, as its TensorFlow checkpoints name it. Moves no tensor itself.

Its dense layers are kept as ours are, but for the two rows of the next sentence's classifier. Its
``gelu`` is the tanh approximation, as modeling.py there computes it.
"""

from modelzoo.common.convert import bert
from modelzoo.common.convert.keys import refuse_others, refuse_ours
from modelzoo.common.convert.layout import SAME, TRANSPOSED, Architecture, Layout, Row, expand
from modelzoo.common.convert.layout import dense as any_dense
from modelzoo.common.convert.layout import norm as any_norm

EMBEDDINGS = "bert/embeddings"
BLOCK = "bert/encoder/layer_{i}"
TRANSFORM = "cls/predictions/transform"


def dense(theirs, ours, shape, group=None):
    """Returns the rows of a dense layer; see ``layout.dense``."""
    return any_dense(theirs, ours, shape, SAME, group=group, ends=("/kernel", "/bias"))


def norm(theirs, ours, group=None):
    """Returns the rows of a layer norm; see ``layout.norm``."""
    return any_norm(theirs, ours, group, ends=("/gamma", "/beta"))


# Dimensions are those of bert.encoder_rows, groups those of bert.TABLE.
TABLE = [
    Row(f"{EMBEDDINGS}/word_embeddings", ("input_embedding/embedding_weights",), "V N"),
    Row(
        f"{EMBEDDINGS}/position_embeddings",
        ("position_embedding/position_embedding_weights",),
        "P N",
    ),
    Row(
        f"{EMBEDDINGS}/token_type_embeddings",
        ("segment_embedding/segment_embedding_weights",),
        "S N",
    ),
    *norm(f"{EMBEDDINGS}/LayerNorm", "pre_encoder_layer_norm"),
    *dense(f"{BLOCK}/attention/self/query", f"{bert.ATTENTION}/q_projection", "N N"),
    *dense(f"{BLOCK}/attention/self/key", f"{bert.ATTENTION}/k_projection", "N N"),
    *dense(f"{BLOCK}/attention/self/value", f"{bert.ATTENTION}/v_projection", "N N"),
    *dense(f"{BLOCK}/attention/output/dense", f"{bert.ATTENTION}/output_transform", "N N"),
    *norm(f"{BLOCK}/attention/output/LayerNorm", "encoder/layer_normalization_layer{_2i}"),
    *dense(f"{BLOCK}/intermediate/dense", "encoder/ffn{_i}/dense_layer{_2i}", "N F"),
    *dense(f"{BLOCK}/output/dense", "encoder/ffn{_i}/dense_layer{_2i+1}", "F N"),
    *norm(f"{BLOCK}/output/LayerNorm", "encoder/layer_normalization_layer{_2i+1}"),
    *dense("bert/pooler/dense", "cls_layer/cls_dense", "N N", group="pooler"),
    *any_dense(
        "cls/seq_relationship",
        "cls_layer/cls_output_dense",
        "C N",
        TRANSPOSED,
        group="nsp",
        ends=("/output_weights", "/output_bias"),
    ),
    *dense(f"{TRANSFORM}/dense", "mlm_layer/mlm_ffn", "N N", group="mlm"),
    *norm(f"{TRANSFORM}/LayerNorm", "mlm_layer/mlm_layer_norm", group="mlm"),
    Row("cls/predictions/output_bias", ("mlm_layer/mlm_bias",), "V", group="mlm"),
]
# The optimizer's variables and the global step, which is carried over by itself.
DROPPED = (r".*/adam_[mv]", "global_step")


def layout(params):
    """Returns the Layout of a model."""
    links = expand(TABLE, bert.sizes_of(params), params.model.num_hidden_layers)
    return Layout(links, {}, DROPPED)


def tree(config, where, names):
    """Returns our YAML's dictionary of a bert_config.json; see Architecture."""
    refuse_others(config, where, {"hidden_act": "gelu"})
    has_nsp = any(name.startswith("cls/seq_relationship/") for name in names)
    return bert.bert_tree(config, where, "gelu", has_nsp)


def config(params, where, names):
    """Returns the bert_config.json of our parameters; see Architecture."""
    theirs = "Google's BERT"
    key = "encoder_nonlinearity" if params.model.encoder_nonlinearity else "nonlinearity"
    refuse_ours(key, params.model.activation, "gelu", where, theirs)
    refuse_ours("num_cls_classes", params.model.num_cls_classes, 2, where, theirs)
    return bert.bert_config(params, where, "gelu", theirs)


def canonical(name):
    """Returns a name as it is."""
    return name


GOOGLE_BERT = Architecture("google_bert", "bert", layout, tree, config, canonical)
