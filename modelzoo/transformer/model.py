"""The encoder-decoder as a model_fn. The blocks are shared.

Source: Vaswani et al., Attention Is All You Need (2017). B batch, S source, T target, V vocabulary
of the target, N hidden size, L layers, H heads, D head size.
"""

import math

import tensorflow.compat.v1 as tf

from modelzoo.common import metrics
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.config.sections import Glorot, TruncatedNormal, VarianceScaling
from modelzoo.common.generate.cached_decoder import ROW_AXES
from modelzoo.common.generate.decoding_spec import decoding_spec
from modelzoo.common.layers.attention import (
    ProjectedMemory,
    causal_mask,
    dropout,
    padding_mask,
    project_memory,
)
from modelzoo.common.layers.block import make_block_settings, numbered
from modelzoo.common.layers.decoder import decoder
from modelzoo.common.layers.dense import sizes
from modelzoo.common.layers.embedding import add_position_embedding, token_embedding
from modelzoo.common.layers.encoder import encoder
from modelzoo.common.layers.layer_norm import layer_norm
from modelzoo.common.layers.lm_head import lm_logits, token_cross_entropy
from modelzoo.common.train.estimator import CSEstimatorSpec
from modelzoo.common.train.loss_spec import loss_spec
from modelzoo.transformer.params import Params
from modelzoo.transformer.vocabulary import vocabulary_sizes


def model_fn(features, labels, mode, params):
    """Builds the graph of training, evaluation or prediction.

    Args:
        features: see data.py. In prediction either those, and what comes back is the encoder's
            output as the decoder needs it, or those of one decoding step, see ``decode_step``.
        labels: [B, T] int32; None in prediction.
    """
    params = params_from_dict(Params, params)
    training = mode == tf.estimator.ModeKeys.TRAIN
    model = EncoderDecoder(params, training)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return decode_step(model, features) if "past" in features else encode(model, features)

    hidden, table = model.decoder_output(features)  # (B, T, N)
    logits = model.logits(hidden, table)  # (B*T, V)
    cross_entropy = token_cross_entropy(logits, labels)  # (B*T,)
    weights = 1.0 - tf.cast(tf.reshape(features["decoder_mask"], [-1]), tf.float32)
    scale = tf.reshape(tf.cast(features["loss_scale"], tf.float32), [-1])
    smoothing = params.model.label_smoothing
    cost = cross_entropy
    if training and smoothing:
        cost += smoothing * model.above_average(hidden, table, labels)
    batch_size = tf.cast(sizes(labels)[0], tf.float32)
    loss = tf.reduce_sum(cost * weights * scale) / batch_size

    def token_metrics():
        choices = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (B*T,)
        tensors = [tf.reshape(labels, [-1]), choices, cross_entropy, weights]
        return metrics.seq2seq_lm_metrics, tensors

    costs = [(loss, tf.reduce_sum(weights), batch_size)]
    return loss_spec(mode, params, costs, token_metrics, {"loss/total_loss": loss})


class EncoderDecoder:
    """The parts of the model, which make or find their variables when they are called."""

    def __init__(self, params, training):
        self._model = model = params.model
        self._training = training
        self._positions = params.max_position_embeddings
        self._vocab_sizes = vocabulary_sizes(params.train_input)
        self._dtype = tf.float16 if model.mixed_precision else tf.float32
        self._encoder_settings = block_settings(model, model.encoder_nonlinearity)
        self._decoder_settings = block_settings(model, model.decoder_nonlinearity)

    def encoder_output(self, features):
        """Returns the encoder's output [B, S, N]."""
        x, _ = self._embed(features["encoder_input_ids"], "encoder")
        mask = padding_mask(features["encoder_mask"], self._dtype)
        layers = self._model.encoder_num_hidden_layers
        x = encoder(x, mask, layers, self._encoder_settings, self._training)
        return self._last_norm(x, "post_encoder_layer_norm")

    def decoder_output(self, features):
        """Runs encoder and decoder; returns [B, T, N] and the decoder's embedding [V, N]."""
        memory = self.encoder_output(features)
        ids = features["decoder_input_ids"]
        mask = causal_mask(sizes(ids)[1], self._dtype)
        memory_mask = padding_mask(features["encoder_mask"], self._dtype)
        return self.decode(ids, mask, memory, memory_mask)

    def decode(self, ids, mask, memory, memory_mask, cache=None, positions=None):
        """Runs the decoder.

        Args:
            ids: [B, T] int32.
            memory: [B, S, N] or ProjectedMemory.
            positions: [B, T] int32 where they do not count from 0.

        Returns:
            [B, T, N], and the embedding [V, N].
        """
        x, table = self._embed(ids, "decoder", positions)
        encoder_layers = self._model.encoder_num_hidden_layers
        x = decoder(
            x,
            mask,
            self._model.decoder_num_hidden_layers,
            self._decoder_settings,
            self._training,
            memory=memory,
            memory_mask=memory_mask,
            first_norm=2 * encoder_layers,
            first_dense=2 * encoder_layers,
            cache=cache,
        )
        return self._last_norm(x, "post_decoder_layer_norm"), table

    def logits(self, hidden, table):
        """Projects [B, T, N] on the vocabulary: [B*T, V] float32, with a bias called ``bias``."""
        return lm_logits(hidden, self._vocab_sizes[1], table, use_bias=True)

    def above_average(self, hidden, table, labels):
        """Returns how far the labels' logits lie above the mean of all logits: [B*T] float32.

        Label smoothing e mixes the label with a uniform distribution (Szegedy et al. 2016, section
        7; Vaswani et al. 2017, section 5.4): (1 - e) * -log p(label) + e * mean of -log p. As the
        logits z are linear, mean of -log p = -log p(label) + z(label) - mean of z needs only the
        label's row of the table and the mean row, never all logits.

        Args:
            hidden: [B, T, N].
            table: [V, N].
            labels: [B, T] int32.
        """
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            bias = tf.get_variable("bias", dtype=tf.float32)
        own = tf.gather(table * 1.0, labels) - tf.reduce_mean(table, axis=0)  # (B, T, N)
        own_bias = tf.gather(bias * 1.0, labels) - tf.reduce_mean(bias)  # (B, T)
        difference = tf.reduce_sum(tf.cast(hidden, tf.float32) * own, axis=-1) + own_bias
        return tf.reshape(difference, [-1])

    def memory_keys_values(self, memory):
        """Returns the encoder's output as keys and values of all layers: [L, 2, B, H, S, D]."""
        layers = []
        with tf.variable_scope("decoder"):
            for index in range(self._model.decoder_num_hidden_layers):
                with tf.variable_scope(numbered("encoder_decoder_attention", index)):
                    layers.append(project_memory(memory, self._decoder_settings.attention))
        return tf.stack(layers)

    def _embed(self, ids, side, positions=None):
        model = self._model
        size, seed = model.hidden_size, model.weight_initialization_seed
        initial = model.embedding_initializer or TruncatedNormal(
            "truncated_normal", 0.0, size**-0.5
        )
        own_size = self._vocab_sizes[side == "decoder"]
        shared = model.share_encoder_decoder_embedding
        if shared is None:
            shared = self._vocab_sizes[0] == self._vocab_sizes[1]
        name = "encoder_token_embedding" if shared else f"{side}_token_embedding"
        with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
            x, table = token_embedding(ids, own_size, size, name, initial, self._dtype, seed)
        x = add_position_embedding(
            x * tf.cast(math.sqrt(size), x.dtype),
            self._positions,
            f"{side}_position_encoding",
            initial if model.position_embedding_type == "learned" else None,
            seed,
            positions,
        )
        x = dropout(x, model.dropout_rate, self._training, model.dropout_seed)
        if not model.use_pre_normalization:
            x = layer_norm(x, model.layer_norm_epsilon, f"pre_{side}_layer_norm")
        return x, table

    def _last_norm(self, x, name):
        """Normalizes the output of pre-norm blocks."""
        epsilon = self._model.layer_norm_epsilon
        return layer_norm(x, epsilon, name) if self._model.use_pre_normalization else x


def block_settings(model, nonlinearity):
    """Returns the settings of the blocks of encoder or decoder.

    Projections of attention start with the variance 1 / (9 * mean of their fans); the feed-forward
    layers as Glorot and Bengio (2010) propose.
    """
    attention_initial = model.attention_initializer or VarianceScaling(
        "variance_scaling", 1.0 / 9.0, "fan_avg", "uniform"
    )
    feed_forward_initial = model.feed_forward_initializer or Glorot("glorot_uniform")
    scaled = model.attention_type == "scaled_dot_product"
    attention = {
        "initializer": attention_initial,
        "output_initializer": attention_initial,
        "use_projection_bias": False,
        "use_output_bias": False,
    }
    return make_block_settings(
        model,
        feed_forward_initial,
        feed_forward_initial,
        nonlinearity,
        attention if scaled else {**attention, "scale": 1.0},
        use_pre_normalization=model.use_pre_normalization,
    )


def encode(model, features):
    """Predicts the encoder's keys and values for the decoder, once for each sentence.

    Args:
        features: ``encoder_input_ids`` and ``encoder_mask`` [B, S].

    Returns:
        A CSEstimatorSpec with ``memory`` [L, 2, B, H, S, D] float32.
    """
    memory = model.memory_keys_values(model.encoder_output(features))
    predictions = {"memory": tf.cast(memory, tf.float32)}
    return CSEstimatorSpec(mode=tf.estimator.ModeKeys.PREDICT, predictions=predictions)


def decode_step(model, features):
    """Predicts the next token.

    The K rows of a sentence have an axis of their own in the features, so that the compiler knows
    the number of rows for any number of sentences.

    Args:
        features: those of ``decoding_spec``, with [B, K] in place of its B; ``memory`` and
            ``encoder_mask`` as ``encode`` predicts them.

    Returns:
        A CSEstimatorSpec, see ``decoding_spec``.
    """
    memory_mask = padding_mask(features["encoder_mask"], tf.float32)
    rows = {name: merged(features[name], axis) for name, axis in ROW_AXES.items()}

    def run(ids, cache, positions, mask, wanted):
        memory = ProjectedMemory(features["memory"])
        hidden, table = model.decode(ids, mask, memory, memory_mask, cache, positions)
        last = tf.gather(hidden, wanted, axis=1, batch_dims=1)  # (B, N)
        return model.logits(last, table)

    return decoding_spec(rows, run)


def merged(x, axis):
    """Merges an axis with the next one."""
    shape = sizes(x)
    return tf.reshape(x, [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]])
