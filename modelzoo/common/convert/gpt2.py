"""GPT-2 and Cerebras-GPT of Hugging Face: names, forms and keys. Moves no tensor itself."""

from modelzoo.common.convert.keys import (
    gpt_tree,
    our_nonlinearity,
    rate_of,
    refuse_others,
    refuse_ours,
    their_nonlinearity,
    token_ids,
)
from modelzoo.common.convert.layout import (
    SAME,
    THIRDS,
    TRANSPOSED,
    Architecture,
    Layout,
    Row,
    dense,
    expand,
    norm,
)

ATTENTION = "decoder/self_attention{_i}"
QKV = tuple(f"{ATTENTION}/{kind}_projection" for kind in "qkv")
BLOCK = "transformer.h.{i}"
THEIRS = "Hugging Face's GPT2LMHeadModel"
# V vocabulary, P positions, N hidden size, Q = 3 * N, F filter size.
TABLE = [
    Row("transformer.wte.weight", ("input_embedding/embedding_weights",), "V N"),
    Row("transformer.wpe.weight", ("position_embedding/position_embedding_weights",), "P N"),
    *norm(f"{BLOCK}.ln_1", "decoder/layer_normalization_layer{_3i}"),
    *dense(f"{BLOCK}.attn.c_attn", QKV, "N Q", THIRDS),
    *dense(f"{BLOCK}.attn.c_proj", f"{ATTENTION}/output_transform", "N N", SAME),
    *norm(f"{BLOCK}.ln_2", "decoder/layer_normalization_layer{_3i+2}"),
    *dense(f"{BLOCK}.mlp.c_fc", "decoder/ffn{_i}/dense_layer{_2i}", "N F", SAME),
    *dense(f"{BLOCK}.mlp.c_proj", "decoder/ffn{_i}/dense_layer{_2i+1}", "F N", SAME),
    *norm("transformer.ln_f", "post_decoder_layer_norm"),
]
HEAD = dense("lm_head", "lm_output_layer", "V N", TRANSPOSED, bias=False)
# Causal masks, which old files hold.
DROPPED = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",)


def layout(params):
    """Returns the Layout of a model."""
    model = params.model
    sizes = {
        "V": params.train_input.vocab_size,
        "P": params.max_position_embeddings,
        "N": model.hidden_size,
        "Q": 3 * model.hidden_size,
        "F": model.filter_size,
    }
    tied = model.share_embedding_weights
    links = expand(TABLE if tied else TABLE + HEAD, sizes, model.num_hidden_layers)
    return Layout(links, {"lm_head.weight": "transformer.wte.weight"} if tied else {}, DROPPED)


def tree(config, where, names):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    refuse_others(config, where, {"add_cross_attention": False})
    scaled = config.get("scale_attn_weights", True)
    hidden_size = config.get("n_embd", 768)
    return gpt_tree(
        "gpt3",
        config.get("vocab_size", 50257),
        config.get("n_positions", 1024),
        {
            "hidden_size": hidden_size,
            "num_hidden_layers": config.get("n_layer", 12),
            "num_heads": config.get("n_head", 12),
            "filter_size": config.get("n_inner") or 4 * hidden_size,
            "max_position_embeddings": config.get("n_positions", 1024),
            "use_position_embedding": True,
            "share_embedding_weights": config.get("tie_word_embeddings", True),
            "attention_type": "scaled_dot_product" if scaled else "dot_product",
            "scale_attn_by_inverse_layer_idx": config.get("scale_attn_by_inverse_layer_idx", False),
            "nonlinearity": our_nonlinearity(config, "activation_function", "gelu_new", where),
            "dropout_rate": config.get("resid_pdrop", 0.1),
            "attention_dropout_rate": config.get("attn_pdrop", 0.1),
            "embedding_dropout_rate": config.get("embd_pdrop", 0.1),
            "layer_norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        },
    )


def config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    model = params.model
    for key in (
        "use_position_embedding",
        "use_pre_normalization",
        "use_projection_bias_in_attention",
        "use_ffn_bias_in_attention",
        "use_ffn_bias",
    ):
        refuse_ours(key, getattr(model, key), True, where, THEIRS)
    refuse_ours("position_embedding_type", model.position_embedding_type, "learned", where, THEIRS)
    hidden_size = model.hidden_size
    refuse_ours("embedding_size", model.embedding_size or hidden_size, hidden_size, where, THEIRS)
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": params.train_input.vocab_size,
        "n_positions": params.max_position_embeddings,
        "n_embd": hidden_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_heads,
        "n_inner": model.filter_size,
        "activation_function": their_nonlinearity(model.nonlinearity, "gelu_new", where),
        "resid_pdrop": model.dropout_rate,
        "attn_pdrop": model.attention_dropout_rate,
        "embd_pdrop": rate_of(model, "embedding_dropout_rate"),
        "layer_norm_epsilon": model.layer_norm_epsilon,
        "scale_attn_weights": model.attention_type == "scaled_dot_product",
        "scale_attn_by_inverse_layer_idx": model.scale_attn_by_inverse_layer_idx,
        "tie_word_embeddings": model.share_embedding_weights,
        **token_ids(params.train_input.vocab_size, 50256),
    }


def canonical(name):
    """Adds the prefix that files of the model without its head leave out."""
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


GPT2 = Architecture(
    "gpt2", "gpt3", layout, tree, config, canonical, classes=("GPT2LMHeadModel", "GPT2Model")
)
