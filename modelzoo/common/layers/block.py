"""The parts of a transformer block: feed-forward and residual.

Shapes: B batch, S sequence, N hidden size.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.attention import AttentionSettings, dropout
from modelzoo.common.layers.dense import dense
from modelzoo.common.layers.layer_norm import layer_norm


@dataclass(frozen=True)
class BlockSettings:
    """Settings of a block.

    With `scale_attn_by_inverse_layer_idx` the scores of block i are divided by i + 1.
    """

    attention: AttentionSettings
    filter_size: int
    nonlinearity: str
    initializer: Any
    output_initializer: Any
    layer_norm_epsilon: float
    use_ffn_bias: bool = True
    dropout_rate: float = 0.0
    use_pre_normalization: bool = True
    scale_attn_by_inverse_layer_idx: bool = False

    def attention_of(self, index):
        """Returns the settings of attention in block number `index`."""
        if not self.scale_attn_by_inverse_layer_idx:
            return self.attention
        return dataclasses.replace(self.attention, scale=self.attention.scale / (index + 1))


def make_block_settings(model, initial, output_initial, nonlinearity, attention=None, **others):
    """Makes the BlockSettings of a section ``model``.

    Args:
        model: CommonModelParams, or another section with these keys.
        initial: initializer of kernels.
        output_initial: initializer of the kernels whose outputs are added to the residual stream.
    """
    settings = {
        "num_heads": model.num_heads,
        "scale": (model.hidden_size // model.num_heads) ** -0.5,
        "initializer": initial,
        "output_initializer": output_initial,
        "dropout_rate": model.attention_dropout_rate,
        "softmax_fp32": model.attention_softmax_fp32,
        "seed": model.weight_initialization_seed,
        "dropout_seed": model.dropout_seed,
        **(attention or {}),
    }
    block = {
        "filter_size": model.filter_size,
        "nonlinearity": nonlinearity,
        "initializer": initial,
        "output_initializer": output_initial,
        "layer_norm_epsilon": model.layer_norm_epsilon,
        "use_ffn_bias": model.use_ffn_bias,
        "dropout_rate": model.dropout_rate,
        **others,
    }
    return BlockSettings(attention=AttentionSettings(**settings), **block)


def attention_keys(model):
    """Returns the fields of AttentionSettings of models with keys for biases and scaling."""
    keys = {
        "use_projection_bias": model.use_projection_bias_in_attention,
        "use_output_bias": model.use_ffn_bias_in_attention,
    }
    return keys if model.attention_type == "scaled_dot_product" else {**keys, "scale": 1.0}


def numbered(name, index):
    """Returns the name of layer number `index`. The first one has no suffix."""
    return f"{name}_{index}" if index else name


def feed_forward(x, settings, name, number):
    """Two dense layers with the activation between them.

    Variables ``<name>/dense_layer[_n]/...`` and ``<name>/dense_layer_{n+1}/...``.

    Args:
        x: [B, S, N].

    Returns:
        [B, S, N], of the type of `x`.
    """
    seed = settings.attention.seed
    with tf.variable_scope(name):
        wide = dense(
            x,
            settings.filter_size,
            numbered("dense_layer", number),
            settings.initializer,
            settings.use_ffn_bias,
            settings.nonlinearity,
            seed=seed,
        )
        return dense(
            wide,
            x.shape[-1],
            numbered("dense_layer", number + 1),
            settings.output_initializer,
            settings.use_ffn_bias,
            seed=seed,
        )


def residual(x, sublayer, settings, norm_number, training):
    """Adds a sublayer's output to its input, with a layer norm before it or after the sum.

    Args:
        x: [B, S, N].
        sublayer: a function from [B, S, N] to [B, S, N].
        norm_number: n in the layer norm's name ``layer_normalization_layer[_n]``.

    Returns:
        [B, S, N], of the type of `x`.
    """
    epsilon = settings.layer_norm_epsilon
    name = numbered("layer_normalization_layer", norm_number)
    pre = settings.use_pre_normalization
    y = sublayer(layer_norm(x, epsilon, name) if pre else x)
    y = x + dropout(y, settings.dropout_rate, training, settings.attention.dropout_seed)
    return y if pre else layer_norm(y, epsilon, name)
