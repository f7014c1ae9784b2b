"""GPT-J of Hugging Face: names, forms and keys. Moves no tensor itself."""

from modelzoo.common.convert.keys import (
    gpt_tree,
    our_nonlinearity,
    rate_of,
    refuse_ours,
    their_nonlinearity,
    token_ids,
)
from modelzoo.common.convert.layout import Architecture, Layout, Row, dense, expand, norm

BLOCK = "transformer.h.{i}"
OURS = "gptj_decoder/{i}"
THEIRS = "Hugging Face's GPTJForCausalLM"
# V vocabulary, N hidden size, F filter size.
TABLE = [
    Row("transformer.wte.weight", ("input_embedding/embedding_weights",), "V N"),
    *norm(f"{BLOCK}.ln_1", f"{OURS}/ln_1"),
    *dense(f"{BLOCK}.attn.q_proj", f"{OURS}/attn/q_proj", "N N", bias=False),
    *dense(f"{BLOCK}.attn.k_proj", f"{OURS}/attn/k_proj", "N N", bias=False),
    *dense(f"{BLOCK}.attn.v_proj", f"{OURS}/attn/v_proj", "N N", bias=False),
    *dense(f"{BLOCK}.attn.out_proj", f"{OURS}/attn/out_proj", "N N", bias=False),
    *dense(f"{BLOCK}.mlp.fc_in", f"{OURS}/mlp/dense_layer{{_2i}}", "F N"),
    *dense(f"{BLOCK}.mlp.fc_out", f"{OURS}/mlp/dense_layer{{_2i+1}}", "N F"),
    *norm("transformer.ln_f", "post_decoder_layer_norm"),
]
HEAD = dense("lm_head", "lm_head", "V N")
TIED_HEAD = [Row("lm_head.bias", ("bias",), "V")]
# Causal masks and tables of angles, which old files hold.
DROPPED = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias|embed_positions)",)


def is_neox(params):
    """Tells whether a model named ``gptj`` is a GPT-NeoX."""
    return params.model.use_untied_layer_norm


def layout(params):
    """Returns the Layout of a model."""
    model = params.model
    sizes = {"V": params.train_input.vocab_size, "N": model.hidden_size, "F": model.filter_size}
    tied = model.share_embedding_weights
    links = expand(TABLE + (TIED_HEAD if tied else HEAD), sizes, model.num_hidden_layers)
    return Layout(links, {"lm_head.weight": "transformer.wte.weight"} if tied else {}, DROPPED)


def tree(config, where, names):
    """Returns our YAML's dictionary of a config.json; see Architecture."""
    hidden_size = config.get("n_embd", 4096)
    num_heads = config.get("n_head", 16)
    return gpt_tree(
        "gptj",
        config.get("vocab_size", 50400),
        config.get("n_positions", 2048),
        {
            "hidden_size": hidden_size,
            "num_hidden_layers": config.get("n_layer", 28),
            "num_heads": num_heads,
            "filter_size": config.get("n_inner") or 4 * hidden_size,
            "rotary_dim": config.get("rotary_dim", 64) or hidden_size // num_heads,
            "use_untied_layer_norm": False,
            "use_projection_bias_in_attention": False,
            "use_ffn_bias_in_attention": False,
            "use_ffn_bias": True,
            "use_bias_in_output": True,
            "share_embedding_weights": config.get("tie_word_embeddings", False),
            "nonlinearity": our_nonlinearity(config, "activation_function", "gelu_new", where),
            "embedding_dropout_rate": config.get("embd_pdrop", 0.0),
            "attention_dropout_rate": config.get("attn_pdrop", 0.0),
            "residual_dropout_rate": config.get("resid_pdrop", 0.0),
            "layer_norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        },
    )


def config(params, where, names):
    """Returns the config.json of our parameters; see Architecture."""
    model = params.model
    wanted = {
        "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False,
        "use_ffn_bias": True,
        "use_bias_in_output": True,
        "rotary_emb_base": 10_000.0,
    }
    for key, value in wanted.items():
        refuse_ours(key, getattr(model, key), value, where, THEIRS)
    length = model.max_position_embeddings or params.train_input.max_sequence_length
    return {
        "model_type": "gptj",
        "architectures": ["GPTJForCausalLM"],
        "vocab_size": params.train_input.vocab_size,
        "n_positions": length,
        "n_embd": model.hidden_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_heads,
        "n_inner": model.filter_size,
        "rotary_dim": model.rotary_dim or model.head_size,
        "activation_function": their_nonlinearity(model.nonlinearity, "gelu_new", where),
        "embd_pdrop": rate_of(model, "embedding_dropout_rate"),
        "attn_pdrop": model.attention_dropout_rate,
        "resid_pdrop": rate_of(model, "residual_dropout_rate"),
        "layer_norm_epsilon": model.layer_norm_epsilon,
        "tie_word_embeddings": model.share_embedding_weights,
        **token_ids(params.train_input.vocab_size, 50256),
    }


def canonical(name):
    """Adds the prefix that files of the model without its head leave out."""
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


GPTJ = Architecture(
    "gptj",
    "gptj",
    layout,
    tree,
    config,
    canonical,
    classes=("GPTJForCausalLM", "GPTJModel"),
    is_ours=lambda params: not is_neox(params),
)
