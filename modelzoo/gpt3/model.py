"""GPT-2 and GPT-3 as a model_fn.

Sources: Radford et al., Language Models are Unsupervised Multitask Learners (2019); Brown et al.,
Language Models are Few-Shot Learners (2020). B batch, S sequence, T = B * S tokens, V vocabulary.
"""

import functools
import math

import tensorflow.compat.v1 as tf

from modelzoo.common.config.params import params_from_dict
from modelzoo.common.config.sections import TruncatedNormal
from modelzoo.common.generate.decoding_spec import decoding_spec, is_decoding
from modelzoo.common.layers.attention import causal_mask, dropout
from modelzoo.common.layers.block import attention_keys, make_block_settings
from modelzoo.common.layers.decoder import decoder
from modelzoo.common.layers.dense import dense, sizes
from modelzoo.common.layers.embedding import add_position_embedding, token_embedding
from modelzoo.common.layers.layer_norm import layer_norm
from modelzoo.common.layers.lm_head import lm_logits
from modelzoo.common.train.language_model import language_model_spec
from modelzoo.gpt3.params import Params

STDDEV = 0.02


def model_fn(features, labels, mode, params):
    """Builds the graph of training, evaluation or prediction.

    Args:
        features: ``input_ids`` [B, S] int32 and ``input_mask`` [B, S], 1 for padding.
        labels: [B, S] int32, the next tokens; None in prediction.
    """
    params = params_from_dict(Params, params)
    training = mode == tf.estimator.ModeKeys.TRAIN
    run = functools.partial(gpt_logits, params=params, training=training)
    if mode == tf.estimator.ModeKeys.PREDICT and is_decoding(features):
        return decoding_spec(features, run)
    logits = run(features["input_ids"])  # (T, V)
    model = params.model
    return language_model_spec(
        features, labels, mode, params, logits, model.loss_scaling, model.loss_weight
    )


def gpt_logits(input_ids, params, training, cache=None, positions=None, mask=None, wanted=None):
    """Runs the model.

    Args:
        input_ids: [B, S] int32.
        cache: KeyValueCache of the earlier positions, None without any.
        positions: [B, S] int32, the position of every token; None for 0 to S - 1.
        mask: additive attention mask over cache and input; None for a causal mask.
        wanted: [B] int32, index of the token of each row whose logits are returned.

    Returns:
        Logits [T, V] of float32, or [B, V] with `wanted`.
    """
    model = params.model
    dtype = tf.float16 if model.mixed_precision else tf.float32
    initial = model.initializer or TruncatedNormal("truncated_normal", 0.0, STDDEV)
    embedding_initial = model.embedding_initializer or initial
    seed, size = model.weight_initialization_seed, model.embedding_size or model.hidden_size
    vocab_size = params.train_input.vocab_size
    x, table = token_embedding(
        input_ids, vocab_size, size, "input_embedding", embedding_initial, dtype, seed
    )
    if model.use_position_embedding:
        learned = model.position_embedding_type == "learned"
        x = add_position_embedding(
            x,
            params.max_position_embeddings,
            "position_embedding",
            embedding_initial if learned else None,
            seed,
            positions,
        )
    if size != model.hidden_size:
        x = dense(x, model.hidden_size, "embedding_projection", initial, False, seed=seed)
    if not model.use_pre_normalization:
        x = layer_norm(x, model.layer_norm_epsilon, "pre_decoder_layer_norm")
    rate = model.embedding_dropout_rate
    rate = model.dropout_rate if rate is None else rate
    x = dropout(x, rate, training, model.dropout_seed)
    if mask is None:
        mask = causal_mask(sizes(x)[1], dtype)
    settings = block_settings(model, initial)
    x = decoder(x, mask, model.num_hidden_layers, settings, training, cache=cache)
    if wanted is not None:
        x = tf.gather(x, wanted, axis=1, batch_dims=1)  # (B, N)
    if model.use_pre_normalization:
        x = layer_norm(x, model.layer_norm_epsilon, "post_decoder_layer_norm")
    return lm_logits(x, vocab_size, table if model.share_embedding_weights else None, initial, seed)


def block_settings(model, initial):
    """Returns the settings of a decoder block.

    Initial kernels of layers whose outputs are added to the residual stream are scaled by
    1 / sqrt(2 L) for L layers (Radford et al. 2019, section 2.3).
    """
    output_initial = model.output_layer_initializer or TruncatedNormal(
        "truncated_normal", 0.0, STDDEV / math.sqrt(2.0 * model.num_hidden_layers)
    )
    return make_block_settings(
        model,
        initial,
        output_initial,
        model.nonlinearity,
        attention_keys(model),
        use_pre_normalization=model.use_pre_normalization,
        scale_attn_by_inverse_layer_idx=model.scale_attn_by_inverse_layer_idx,
    )
