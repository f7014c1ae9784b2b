"""Counts the parameters of fine-tunings: of a graph, by formula, and for the pages.

It deliberately holds no tests.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from modelzoo.common import registry, schema
from modelzoo.common.params import load_params

ROOT = Path(__file__).resolve().parents[4]


def load(name):
    return load_params(str(ROOT / "configs" / f"{name}.yaml"))


def encoder_formula(params):
    """Embeddings and L blocks of 4 h^2 + 2 h f, with their biases and norms; no pooled token."""
    m = params.model
    h, f = m.hidden_size, m.filter_size
    rows = params.vocab_size + params.max_position_embeddings + 2 * m.use_segment_embedding
    block = 4 * (h * h + h) + 2 * h * f + f + h + 2 * 2 * h
    return rows * h + 2 * h + m.num_hidden_layers * block


def counted(params):
    """Counts variables. Layers are alike, so graphs of one and two layers tell any number's."""
    one, two = (_count(params, layers) for layers in (1, 2))
    return one + (params.model.num_hidden_layers - 1) * (two - one)


def _count(params, layers):
    import tensorflow.compat.v1 as tf

    room, data = registry.load_room(params.model_name)
    model = dataclasses.replace(params.model, num_hidden_layers=layers)
    tree = schema.as_tree(dataclasses.replace(params, model=model))
    with tf.Graph().as_default():
        features, labels = tf.data.make_one_shot_iterator(data.INPUTS.blank(tree)).get_next()
        room.model_fn(features, labels, tf.estimator.ModeKeys.EVAL, tree)
        return sum(variable.shape.num_elements() for variable in tf.trainable_variables())


def expected(params, head):
    """What the page must list of a config whose head has so many parameters."""
    m, length = params.model, params.train_input.max_sequence_length
    sizes = [m.num_hidden_layers, m.hidden_size, m.num_heads, m.filter_size, length]
    return [*sizes, encoder_formula(params) + head]
