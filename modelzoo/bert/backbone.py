"""BERT's encoder and its pooled first token, for pre-training and every fine-tuning.

Source: Devlin et al., BERT: Pre-training of Deep
Bidirectional Transformers for Language Understanding (2018). B batch, S sequence, V vocabulary, N
hidden size, E embedding size.
"""

import tensorflow.compat.v1 as tf

from modelzoo.common.config.sections import TruncatedNormal
from modelzoo.common.layers.attention import dropout, padding_mask
from modelzoo.common.layers.block import attention_keys, make_block_settings
from modelzoo.common.layers.dense import dense
from modelzoo.common.layers.embedding import add_position_embedding, token_embedding
from modelzoo.common.layers.encoder import encoder
from modelzoo.common.layers.initializers import make_variable
from modelzoo.common.layers.layer_norm import layer_norm

INITIAL = TruncatedNormal("truncated_normal", 0.0, 0.02)  # Devlin et al.'s released code


def bert_encoder(features, model, vocab_size, max_positions, training):
    """Embeds tokens and runs the encoder.

    Args:
        features: ``input_ids`` [B, S] int32; ``input_mask`` [B, S], 1 for padding; ``segment_ids``
            [B, S] int32, 0 to 2, optional.
        max_positions: number of learned positions, at least S.

    Returns:
        Hidden states [B, S, N], float16 with mixed precision, else float32; and the variable of
        the embedding table [V, E].
    """
    dtype = tf.float16 if model.mixed_precision else tf.float32
    initial = initializer_of(model)
    embedding_initial = model.embedding_initializer or initial
    seed, size = model.weight_initialization_seed, model.embedding_size or model.hidden_size
    ids = features["input_ids"]
    x, table = token_embedding(
        ids, vocab_size, size, "input_embedding", embedding_initial, dtype, seed
    )
    if model.use_position_embedding:
        learned = embedding_initial if model.position_embedding_type == "learned" else None
        offset = model.position_embedding_offset
        x = add_position_embedding(
            x, max_positions, "position_embedding", learned, seed, offset=offset
        )
    if model.use_segment_embedding:
        segments = features.get("segment_ids")
        if segments is None or model.num_segments == 1:
            segments = tf.zeros_like(ids)
        x = x + segment_embedding(
            segments, model.num_segments, size, embedding_initial, dtype, seed
        )
    if size != model.hidden_size:
        x = dense(x, model.hidden_size, "embedding_projection", initial, False, seed=seed)
    x = layer_norm(x, model.layer_norm_epsilon, "pre_encoder_layer_norm")
    rate = model.embedding_dropout_rate
    rate = model.dropout_rate if rate is None else rate
    x = dropout(x, rate, training, model.dropout_seed)
    mask = padding_mask(features["input_mask"], dtype)
    return encoder(x, mask, model.num_hidden_layers, block_settings(model), training), table


def pooled(hidden, model):
    """Pools a sequence to one vector: its first token through a dense layer.

    Variables ``cls_layer/cls_dense/...``.

    Args:
        hidden: [B, S, N].

    Returns:
        [B, N], of the type of `hidden`.
    """
    with tf.variable_scope("cls_layer"):
        return dense(
            hidden[:, 0, :],
            model.hidden_size,
            "cls_dense",
            initializer_of(model),
            activation=model.nsp_nonlinearity,
            seed=model.weight_initialization_seed,
        )


def segment_embedding(segment_ids, num_segments, size, initializer, dtype, seed=None):
    """Embeds segments [B, S] as [B, S, E] of type `dtype`.

    Variable ``segment_embedding/segment_embedding_weights`` [num_segments, E].
    """
    with tf.variable_scope("segment_embedding"):
        shape = [num_segments, size]
        table = make_variable("segment_embedding_weights", shape, initializer, seed)
        # Times one makes the gradient dense.
        return tf.cast(tf.gather(table * 1.0, segment_ids), dtype)


def initializer_of(model):
    """Returns the initializer of the kernels."""
    return model.initializer or INITIAL


def block_settings(model):
    """Returns the settings of an encoder block."""
    initial = initializer_of(model)
    return make_block_settings(
        model,
        initial,
        initial,
        model.activation,
        {**attention_keys(model), "keys_begin_as_queries": model.keys_begin_as_queries},
        use_pre_normalization=False,
    )
