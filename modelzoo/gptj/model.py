"""GPT-J and GPT-NeoX as a model_fn.

Sources: Wang and Komatsuzaki, GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model (2021);
Black et al., GPT-NeoX-20B: An Open-Source Autoregressive Language Model (2022). B batch, S
sequence, T = B * S tokens, V vocabulary, N hidden size, L layers.
"""

import functools

import tensorflow.compat.v1 as tf

from modelzoo.common.config.params import params_from_dict
from modelzoo.common.config.sections import TruncatedNormal, VarianceScaling
from modelzoo.common.generate.decoding_spec import decoding_spec, is_decoding
from modelzoo.common.layers.attention import attention, causal_mask, dropout
from modelzoo.common.layers.block import feed_forward, make_block_settings
from modelzoo.common.layers.dense import sizes
from modelzoo.common.layers.embedding import token_embedding
from modelzoo.common.layers.layer_norm import layer_norm
from modelzoo.common.layers.lm_head import lm_logits
from modelzoo.common.layers.rotary import Rotary
from modelzoo.common.train.language_model import language_model_spec
from modelzoo.gptj.params import Params

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def model_fn(features, labels, mode, params):
    """Builds the graph of training, evaluation or prediction.

    Args:
        features: ``input_ids`` [B, S] int32 and ``input_mask`` [B, S], 1 where a token is padding
            or part of an article before its summary, neither of which counts in the loss.
        labels: [B, S] int32, the next tokens; None in prediction.
    """
    params = params_from_dict(Params, params)
    training = mode == tf.estimator.ModeKeys.TRAIN
    run = functools.partial(gptj_logits, params=params, training=training)
    if mode == tf.estimator.ModeKeys.PREDICT and is_decoding(features):
        return decoding_spec(features, run)
    logits = run(features["input_ids"])  # (T, V)
    return language_model_spec(features, labels, mode, params, logits)


def gptj_logits(input_ids, params, training, cache=None, positions=None, mask=None, wanted=None):
    """Runs the model.

    Attention is causal and does not use the input mask: padding comes after the text, and a summary
    attends to its article, which is masked in the loss.

    Args:
        input_ids: [B, S] int32.
        cache: KeyValueCache of the earlier positions; needs `positions` and `mask`.
        positions: [B, S] int32, None for 0 to S - 1.
        mask: additive attention mask, broadcastable to [B, H, S, positions of cache and input];
            None for a causal one.
        wanted: [B] int32, index of the token of each row whose logits are returned.

    Returns:
        Logits [T, V] of float32, or [B, V] with `wanted`.
    """
    model = params.model
    dtype = tf.float16 if model.mixed_precision else tf.float32
    vocab_size, seed = params.train_input.vocab_size, model.weight_initialization_seed
    initial = model.initializer_of("initializer", vocab_size) or VarianceScaling(
        "variance_scaling", 1.0
    )
    embedding_initial = model.initializer_of(
        "embedding_initializer", vocab_size
    ) or TruncatedNormal("truncated_normal", 0.0, vocab_size**-0.5)
    x, table = token_embedding(
        input_ids, vocab_size, model.hidden_size, "input_embedding", embedding_initial, dtype, seed
    )
    x = dropout(x, _rate(model, "embedding_dropout_rate"), training, model.dropout_seed)
    length = sizes(input_ids)[1]
    positions = tf.range(length)[None, :] if positions is None else positions
    mask = causal_mask(length, dtype) if mask is None else mask
    rotated = model.rotary_dim or model.head_size
    rotary = Rotary(model.head_size, rotated, positions, dtype, model.rotary_emb_base)
    output_initial = model.initializer_of("output_layer_initializer", vocab_size)
    settings = block_settings(model, initial, output_initial, rotary)
    with tf.variable_scope("gptj_decoder"):
        for index in range(model.num_hidden_layers):
            x = block(x, mask, index, settings, model, training, cache)
    if wanted is not None:
        x = tf.gather(x, wanted, axis=1, batch_dims=1)  # (B, N)
    x = layer_norm(x, model.layer_norm_epsilon, "post_decoder_layer_norm")
    table = table if model.share_embedding_weights else None
    return lm_logits(x, vocab_size, table, initial, seed, "lm_head", model.use_bias_in_output)


def block(x, mask, index, settings, model, training, cache=None):
    """Adds attention and feed-forward to the residual stream, in parallel or sequentially.

    In parallel: y = x + attention(ln_1(x)) + feed_forward(ln_1(x)), or ln_2(x) with untied norms.
    Sequentially: z = x + attention(ln_1(x)), y = z + feed_forward(ln_2(z)).

    Args:
        x: [B, S, N].

    Returns:
        [B, S, N], of the type of `x`.
    """
    rate, seed = settings.dropout_rate, settings.attention.dropout_seed
    with tf.variable_scope(str(index)):
        y = layer_norm(x, settings.layer_norm_epsilon, "ln_1")
        attended = attention(y, y, mask, settings.attention, "attn", training, cache)
        attended = x + dropout(attended, rate, training, seed)
        if model.use_untied_layer_norm:
            z = x if model.use_parallel_residual else attended
            y = layer_norm(z, settings.layer_norm_epsilon, "ln_2")
        fed = feed_forward(y, settings, "mlp", 2 * index)
        return attended + dropout(fed, rate, training, seed)


def block_settings(model, initial, output_initial, rotary):
    """Returns the settings of a block.

    Initial kernels of layers whose outputs are added to the residual stream have the variance
    4 / (L^2 fan_in), the standard deviation 2 / (L sqrt(N)) of Wang and Komatsuzaki (Black et al.
    2022, section 2.1.3).
    """
    output_initial = output_initial or VarianceScaling(
        "variance_scaling", 4.0 / model.num_hidden_layers**2
    )
    attention_settings = {
        "use_projection_bias": model.use_projection_bias_in_attention,
        "use_output_bias": model.use_ffn_bias_in_attention,
        "rotary": rotary,
        "names": PROJECTIONS,
    }
    return make_block_settings(
        model,
        initial,
        output_initial,
        model.nonlinearity,
        attention_settings,
        dropout_rate=_rate(model, "residual_dropout_rate"),
    )


def _rate(model, key):
    rate = getattr(model, key)
    return model.dropout_rate if rate is None else rate
