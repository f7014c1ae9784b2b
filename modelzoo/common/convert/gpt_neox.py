"""GPT-NeoX of Hugging Face: names, forms and keys. Moves no tensor itself."""

import math

from modelzoo.common.convert.gptj import is_neox
from modelzoo.common.convert.keys import (
    gpt_tree,
    our_nonlinearity,
    rate_of,
    refuse_ours,
    refuse_theirs,
    required,
    their_nonlinearity,
    token_ids,
)
from modelzoo.common.convert.layout import (
    Architecture,
    FusedHeads,
    Layout,
    Row,
    dense,
    expand,
    norm,
)

BLOCK = "gpt_neox.layers.{i}"
OURS = "gptj_decoder/{i}"
QKV = tuple(f"{OURS}/attn/{kind}_proj" for kind in "qkv")
THEIRS = "Hugging Face's GPTNeoXForCausalLM"
# The begin and the end of a text of GPT-NeoX 20B.
END_OF_TEXT = 0
# Causal masks and rates of rotation, which old files hold.
DROPPED = (
    r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
    r"gpt_neox\.rotary_emb\.inv_freq",
)


def table(form, bias):
    """Returns the rows but those of the head.

    `form` is that of queries, keys and values, `bias` is whether attention has biases.

    V vocabulary, N hidden size, Q = 3 * N, F filter size.
    """
    return [
        Row("gpt_neox.embed_in.weight", ("input_embedding/embedding_weights",), "V N"),
        *norm(f"{BLOCK}.input_layernorm", f"{OURS}/ln_1"),
        *dense(f"{BLOCK}.attention.query_key_value", QKV, "Q N", form, bias),
        *dense(f"{BLOCK}.attention.dense", f"{OURS}/attn/out_proj", "N N", bias=bias),
        *norm(f"{BLOCK}.post_attention_layernorm", f"{OURS}/ln_2"),
        *dense(f"{BLOCK}.mlp.dense_h_to_4h", f"{OURS}/mlp/dense_layer{{_2i}}", "F N"),
        *dense(f"{BLOCK}.mlp.dense_4h_to_h", f"{OURS}/mlp/dense_layer{{_2i+1}}", "N F"),
        *norm("gpt_neox.final_layer_norm", "post_decoder_layer_norm"),
    ]


HEAD = dense("embed_out", "lm_head", "V N", bias=False)


def layout(params):
    """Returns the Layout of a model."""
    model = params.model
    sizes = {
        "V": params.train_input.vocab_size,
        "N": model.hidden_size,
        "Q": 3 * model.hidden_size,
        "F": model.filter_size,
    }
    tied = model.share_embedding_weights
    form = FusedHeads(model.num_heads, _rotary_dim(model))
    rows = table(form, model.use_projection_bias_in_attention)
    links = expand(rows if tied else rows + HEAD, sizes, model.num_hidden_layers)
    return Layout(links, {"embed_out.weight": "gpt_neox.embed_in.weight"} if tied else {}, DROPPED)


def _rotary_dim(model):
    return model.rotary_dim or model.head_size


def rotary_share(model):
    """Returns the share of a head's features with rotary embedding, as in `rotary_pct`."""
    share = _rotary_dim(model) / model.head_size
    is_cut = int(model.head_size * share) < _rotary_dim(model)  # as it is read there
    return math.nextafter(share, 1.0) if is_cut else share


def tree(config, where, names):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    base = rope.get("rope_theta", config.get("rotary_emb_base", config.get("rope_theta")))
    share = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    refuse_theirs("rope_type", rope_type, "default", where)
    bias = config.get("attention_bias", True)
    hidden_size = required(config, "hidden_size", where)
    num_heads = required(config, "num_attention_heads", where)
    length = required(config, "max_position_embeddings", where)
    return gpt_tree(
        "gptj",
        required(config, "vocab_size", where),
        length,
        {
            "hidden_size": hidden_size,
            "num_hidden_layers": required(config, "num_hidden_layers", where),
            "num_heads": num_heads,
            "filter_size": required(config, "intermediate_size", where),
            "rotary_dim": int(hidden_size // num_heads * share),
            "rotary_emb_base": float(base or 10_000),
            "use_untied_layer_norm": True,
            "use_parallel_residual": config.get("use_parallel_residual", True),
            "use_projection_bias_in_attention": bias,
            "use_ffn_bias_in_attention": bias,
            "use_ffn_bias": True,
            "use_bias_in_output": False,
            "share_embedding_weights": config.get("tie_word_embeddings", False),
            "nonlinearity": our_nonlinearity(config, "hidden_act", "gelu", where),
            "embedding_dropout_rate": config.get("hidden_dropout", 0.0),
            "attention_dropout_rate": config.get("attention_dropout", 0.0),
            "residual_dropout_rate": config.get("hidden_dropout", 0.0),
            "layer_norm_epsilon": config.get("layer_norm_eps", 1e-5),
        },
    )


def config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    model = params.model
    bias = model.use_projection_bias_in_attention
    wanted = {"use_ffn_bias_in_attention": bias, "use_ffn_bias": True, "use_bias_in_output": False}
    for key, value in wanted.items():
        refuse_ours(key, getattr(model, key), value, where, THEIRS)
    rate = rate_of(model, "residual_dropout_rate")
    embedding_rate = rate_of(model, "embedding_dropout_rate")
    refuse_ours("embedding_dropout_rate", embedding_rate, rate, where, THEIRS)
    length = model.max_position_embeddings or params.train_input.max_sequence_length
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": params.train_input.vocab_size,
        "max_position_embeddings": length,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.filter_size,
        "rotary_pct": rotary_share(model),
        "rotary_emb_base": model.rotary_emb_base,
        "hidden_act": their_nonlinearity(model.nonlinearity, "gelu_fast", where),
        "hidden_dropout": rate,
        "attention_dropout": model.attention_dropout_rate,
        "layer_norm_eps": model.layer_norm_epsilon,
        "use_parallel_residual": model.use_parallel_residual,
        "attention_bias": bias,
        "tie_word_embeddings": model.share_embedding_weights,
        **token_ids(params.train_input.vocab_size, END_OF_TEXT),
    }


def canonical(name):
    """Adds the prefix that files of the model without its head leave out."""
    return name if name.startswith(("gpt_neox.", "embed_out.")) else f"gpt_neox.{name}"


GPT_NEOX = Architecture(
    "gpt_neox",
    "gptj",
    layout,
    tree,
    config,
    canonical,
    classes=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    is_ours=is_neox,
)
