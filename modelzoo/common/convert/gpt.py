"""GPT-2, Cerebras-GPT, GPT-J and GPT-NeoX of Hugging Face: names, forms and keys.

It moves no tensor. V vocabulary, P positions, N hidden size, Q = 3 * N, F filter size.
"""

import math

from modelzoo.common.convert.keys import (
    REQUIRED,
    gpt_tree,
    our_nonlinearity,
    rate_of,
    read_keys,
    refuse_others,
    refuse_ours,
    refuse_theirs,
    refuse_variants,
    required,
    their_nonlinearity,
    token_ids,
    write_keys,
)
from modelzoo.common.convert.layout import (
    SAME,
    THIRDS,
    TRANSPOSED,
    Architecture,
    FusedHeads,
    Layout,
    Row,
    dense,
    expand,
    norm,
)

EMBEDDING = ("input_embedding/embedding_weights",)
BLOCK, NEOX_BLOCK = "transformer.h.{i}", "gpt_neox.layers.{i}"
OURS = "gptj_decoder/{i}"
END_OF_TEXT, NEOX_END_OF_TEXT = 50256, 0
# Causal masks and tables of angles, which old files hold.
DROPPED = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias|embed_positions)",)
NEOX_DROPPED = (
    r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
    r"gpt_neox\.rotary_emb\.inv_freq",
)


def sizes_of(params):
    """Returns the number by dimension of a table."""
    model = params.model
    return {
        "V": params.train_input.vocab_size,
        "P": getattr(params, "max_position_embeddings", None),
        "N": model.hidden_size,
        "Q": 3 * model.hidden_size,
        "F": model.filter_size,
    }


def make_layout(params, rows, head, tied_head, dropped):
    """Returns the Layout of a model; a tied head may be in a file as a copy of the embedding."""
    tied = params.model.share_embedding_weights
    links = expand(
        rows + (tied_head if tied else head), sizes_of(params), params.model.num_hidden_layers
    )
    return Layout(links, {head[0].theirs: rows[0].theirs} if tied else {}, dropped)


def make_config(params, where, architecture, keys, fixed, more):
    """Returns a config.json.

    Args:
        keys: see `keys.read_keys`.
        fixed: keys of our section ``model``, and the only value that can be converted.
        more: further keys of config.json.
    """
    theirs = architecture.classes[0]
    refuse_variants(params.model, fixed, where, f"Hugging Face's {theirs}")
    vocab_size = params.train_input.vocab_size
    end = NEOX_END_OF_TEXT if architecture.name == "gpt_neox" else END_OF_TEXT
    return {
        "model_type": architecture.name,
        "architectures": [theirs],
        "vocab_size": vocab_size,
        **write_keys(params.model, keys),
        **more,
        **token_ids(vocab_size, end),
    }


def longest(params):
    """Returns the positions of a model with rotary embeddings."""
    return params.model.max_position_embeddings or params.train_input.max_sequence_length


def canonical(name):
    """Adds the prefix that files of the model without its head leave out."""
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


# ---- GPT-2

ATTENTION = "decoder/self_attention{_i}"
QKV = tuple(f"{ATTENTION}/{kind}_projection" for kind in "qkv")
GPT2_TABLE = [
    Row("transformer.wte.weight", EMBEDDING, "V N"),
    Row("transformer.wpe.weight", ("position_embedding/position_embedding_weights",), "P N"),
    *norm(f"{BLOCK}.ln_1", "decoder/layer_normalization_layer{_3i}"),
    *dense(f"{BLOCK}.attn.c_attn", QKV, "N Q", THIRDS),
    *dense(f"{BLOCK}.attn.c_proj", f"{ATTENTION}/output_transform", "N N", SAME),
    *norm(f"{BLOCK}.ln_2", "decoder/layer_normalization_layer{_3i+2}"),
    *dense(f"{BLOCK}.mlp.c_fc", "decoder/ffn{_i}/dense_layer{_2i}", "N F", SAME),
    *dense(f"{BLOCK}.mlp.c_proj", "decoder/ffn{_i}/dense_layer{_2i+1}", "F N", SAME),
    *norm("transformer.ln_f", "post_decoder_layer_norm"),
]
GPT2_HEAD = dense("lm_head", "lm_output_layer", "V N", TRANSPOSED, bias=False)
GPT2_KEYS = (
    ("n_embd", "hidden_size", 768),
    ("n_layer", "num_hidden_layers", 12),
    ("n_head", "num_heads", 12),
    ("resid_pdrop", "dropout_rate", 0.1),
    ("attn_pdrop", "attention_dropout_rate", 0.1),
    ("embd_pdrop", "embedding_dropout_rate", 0.1),
    ("layer_norm_epsilon", "layer_norm_epsilon", 1e-5),
    ("scale_attn_by_inverse_layer_idx", "scale_attn_by_inverse_layer_idx", False),
    ("tie_word_embeddings", "share_embedding_weights", True),
)
GPT2_FIXED = {
    "use_position_embedding": True,
    "use_pre_normalization": True,
    "use_projection_bias_in_attention": True,
    "use_ffn_bias_in_attention": True,
    "use_ffn_bias": True,
    "position_embedding_type": "learned",
}


def gpt2_layout(params):
    """Returns the Layout of a GPT-2."""
    return make_layout(params, GPT2_TABLE, GPT2_HEAD, [], DROPPED)


def gpt2_tree(config, where, names):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    refuse_others(config, where, {"add_cross_attention": False})
    model, length = read_keys(config, where, GPT2_KEYS), config.get("n_positions", 1024)
    scaled = config.get("scale_attn_weights", True)
    model |= {
        "filter_size": config.get("n_inner") or 4 * model["hidden_size"],
        "max_position_embeddings": length,
        "use_position_embedding": True,
        "attention_type": "scaled_dot_product" if scaled else "dot_product",
        "nonlinearity": our_nonlinearity(config, "activation_function", "gelu_new", where),
    }
    return gpt_tree("gpt3", config.get("vocab_size", 50257), length, model)


def gpt2_config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    model = params.model
    fixed = GPT2_FIXED | ({"embedding_size": model.hidden_size} if model.embedding_size else {})
    more = {
        "n_positions": params.max_position_embeddings,
        "n_inner": model.filter_size,
        "activation_function": their_nonlinearity(model.nonlinearity, "gelu_new", where),
        "scale_attn_weights": model.attention_type == "scaled_dot_product",
    }
    return make_config(params, where, GPT2, GPT2_KEYS, fixed, more)


GPT2 = Architecture(
    "gpt2",
    "gpt3",
    gpt2_layout,
    gpt2_tree,
    gpt2_config,
    canonical,
    classes=("GPT2LMHeadModel", "GPT2Model"),
)

# ---- GPT-J

GPTJ_TABLE = [
    Row("transformer.wte.weight", EMBEDDING, "V N"),
    *norm(f"{BLOCK}.ln_1", f"{OURS}/ln_1"),
    *dense(f"{BLOCK}.attn.q_proj", f"{OURS}/attn/q_proj", "N N", bias=False),
    *dense(f"{BLOCK}.attn.k_proj", f"{OURS}/attn/k_proj", "N N", bias=False),
    *dense(f"{BLOCK}.attn.v_proj", f"{OURS}/attn/v_proj", "N N", bias=False),
    *dense(f"{BLOCK}.attn.out_proj", f"{OURS}/attn/out_proj", "N N", bias=False),
    *dense(f"{BLOCK}.mlp.fc_in", f"{OURS}/mlp/dense_layer{{_2i}}", "F N"),
    *dense(f"{BLOCK}.mlp.fc_out", f"{OURS}/mlp/dense_layer{{_2i+1}}", "N F"),
    *norm("transformer.ln_f", "post_decoder_layer_norm"),
]
GPTJ_HEAD = dense("lm_head", "lm_head", "V N")
GPTJ_KEYS = (
    ("n_embd", "hidden_size", 4096),
    ("n_layer", "num_hidden_layers", 28),
    ("n_head", "num_heads", 16),
    ("embd_pdrop", "embedding_dropout_rate", 0.0),
    ("attn_pdrop", "attention_dropout_rate", 0.0),
    ("resid_pdrop", "residual_dropout_rate", 0.0),
    ("layer_norm_epsilon", "layer_norm_epsilon", 1e-5),
    ("tie_word_embeddings", "share_embedding_weights", False),
)
GPTJ_FIXED = {
    "use_projection_bias_in_attention": False,
    "use_ffn_bias_in_attention": False,
    "use_ffn_bias": True,
    "use_bias_in_output": True,
}


def gptj_layout(params):
    """Returns the Layout of a GPT-J."""
    tied_head = [Row("lm_head.bias", ("bias",), "V")]
    return make_layout(params, GPTJ_TABLE, GPTJ_HEAD, tied_head, DROPPED)


def gptj_tree(config, where, names):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    model = read_keys(config, where, GPTJ_KEYS) | GPTJ_FIXED
    hidden_size = model["hidden_size"]
    model |= {
        "filter_size": config.get("n_inner") or 4 * hidden_size,
        "rotary_dim": config.get("rotary_dim", 64) or hidden_size // model["num_heads"],
        "use_untied_layer_norm": False,
        "nonlinearity": our_nonlinearity(config, "activation_function", "gelu_new", where),
    }
    return gpt_tree("gptj", config.get("vocab_size", 50400), config.get("n_positions", 2048), model)


def gptj_config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    model = params.model
    more = {
        "n_positions": longest(params),
        "n_inner": model.filter_size,
        "rotary_dim": _rotary_dim(model),
        "activation_function": their_nonlinearity(model.nonlinearity, "gelu_new", where),
    }
    fixed = GPTJ_FIXED | {"rotary_emb_base": 10_000.0}
    return make_config(params, where, GPTJ, GPTJ_KEYS, fixed, more)


def is_neox(params):
    """Returns whether a model named ``gptj`` is a GPT-NeoX."""
    return params.model.use_untied_layer_norm


GPTJ = Architecture(
    "gptj",
    "gptj",
    gptj_layout,
    gptj_tree,
    gptj_config,
    canonical,
    classes=("GPTJForCausalLM", "GPTJModel"),
    is_ours=lambda params: not is_neox(params),
)

# ---- GPT-NeoX

NEOX_QKV = tuple(f"{OURS}/attn/{kind}_proj" for kind in "qkv")
NEOX_HEAD = dense("embed_out", "lm_head", "V N", bias=False)
NEOX_KEYS = (
    ("hidden_size", "hidden_size", REQUIRED),
    ("num_hidden_layers", "num_hidden_layers", REQUIRED),
    ("num_attention_heads", "num_heads", REQUIRED),
    ("intermediate_size", "filter_size", REQUIRED),
    ("hidden_dropout", "residual_dropout_rate", 0.0),
    ("attention_dropout", "attention_dropout_rate", 0.0),
    ("layer_norm_eps", "layer_norm_epsilon", 1e-5),
    ("use_parallel_residual", "use_parallel_residual", True),
    ("attention_bias", "use_projection_bias_in_attention", True),
    ("tie_word_embeddings", "share_embedding_weights", False),
)
NEOX_FIXED = {"use_ffn_bias": True, "use_bias_in_output": False}


def neox_layout(params):
    """Returns the Layout of a GPT-NeoX."""
    model = params.model
    form, bias = FusedHeads(model.num_heads, _rotary_dim(model)), _attention_bias(model)
    rows = [
        Row("gpt_neox.embed_in.weight", EMBEDDING, "V N"),
        *norm(f"{NEOX_BLOCK}.input_layernorm", f"{OURS}/ln_1"),
        *dense(f"{NEOX_BLOCK}.attention.query_key_value", NEOX_QKV, "Q N", form, bias),
        *dense(f"{NEOX_BLOCK}.attention.dense", f"{OURS}/attn/out_proj", "N N", bias=bias),
        *norm(f"{NEOX_BLOCK}.post_attention_layernorm", f"{OURS}/ln_2"),
        *dense(f"{NEOX_BLOCK}.mlp.dense_h_to_4h", f"{OURS}/mlp/dense_layer{{_2i}}", "F N"),
        *dense(f"{NEOX_BLOCK}.mlp.dense_4h_to_h", f"{OURS}/mlp/dense_layer{{_2i+1}}", "N F"),
        *norm("gpt_neox.final_layer_norm", "post_decoder_layer_norm"),
    ]
    return make_layout(params, rows, NEOX_HEAD, [], NEOX_DROPPED)


def _attention_bias(model):
    return model.use_projection_bias_in_attention


def _rotary_dim(model):
    return model.rotary_dim or model.head_size


def rotary_share(model):
    """Returns the share of a head's features with rotary embedding, as in `rotary_pct`."""
    share = _rotary_dim(model) / model.head_size
    is_cut = int(model.head_size * share) < _rotary_dim(model)  # as it is read there
    return math.nextafter(share, 1.0) if is_cut else share


def neox_tree(config, where, names):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    base = rope.get("rope_theta", config.get("rotary_emb_base", config.get("rope_theta")))
    share = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    refuse_theirs("rope_type", rope_type, "default", where)
    model = read_keys(config, where, NEOX_KEYS) | NEOX_FIXED
    model |= {
        "rotary_dim": int(model["hidden_size"] // model["num_heads"] * share),
        "rotary_emb_base": float(base or 10_000),
        "use_untied_layer_norm": True,
        "use_ffn_bias_in_attention": model["use_projection_bias_in_attention"],
        "nonlinearity": our_nonlinearity(config, "hidden_act", "gelu", where),
        "embedding_dropout_rate": model["residual_dropout_rate"],
    }
    length = required(config, "max_position_embeddings", where)
    return gpt_tree("gptj", required(config, "vocab_size", where), length, model)


def neox_config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    model = params.model
    fixed = NEOX_FIXED | {"use_ffn_bias_in_attention": _attention_bias(model)}
    rate, theirs = rate_of(model, "residual_dropout_rate"), f"Hugging Face's {GPT_NEOX.classes[0]}"
    embedding_rate = rate_of(model, "embedding_dropout_rate")
    refuse_ours("embedding_dropout_rate", embedding_rate, rate, where, theirs)
    more = {
        "max_position_embeddings": longest(params),
        "rotary_pct": rotary_share(model),
        "rotary_emb_base": model.rotary_emb_base,
        "hidden_act": their_nonlinearity(model.nonlinearity, "gelu_fast", where),
    }
    return make_config(params, where, GPT_NEOX, NEOX_KEYS, fixed, more)


def neox_canonical(name):
    """Adds the prefix that files of the model without its head leave out."""
    return name if name.startswith(("gpt_neox.", "embed_out.")) else f"gpt_neox.{name}"


GPT_NEOX = Architecture(
    "gpt_neox",
    "gptj",
    neox_layout,
    neox_tree,
    neox_config,
    neox_canonical,
    classes=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    is_ours=is_neox,
)
