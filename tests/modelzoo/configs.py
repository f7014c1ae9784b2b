"""Loads the configs of configs/ and counts their models' parameters. Holds no tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.config import schema
from modelzoo.common.config import registry
from modelzoo.common.config.params import load_params

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def names_of(*patterns):
    """Returns the names, without ending, of the configs that match one of the patterns."""
    return sorted(path.stem for pattern in patterns for path in CONFIGS.glob(f"{pattern}.yaml"))


def load(name):
    """Reads a config strictly."""
    return load_params(str(CONFIGS / f"{name}.yaml"))


def build(params, layers=None):
    """Builds the graph of an evaluation without memory for the model's variables.

    Args:
        params: of the config.
        layers: number of layers instead of the config's.

    Returns:
        The variables that are trained.
    """
    if layers is not None:
        model = dataclasses.replace(params.model, num_hidden_layers=layers)
        params = dataclasses.replace(params, model=model)
    if hasattr(params.eval_input, "disable_eval_metrics"):  # they may need files of the data
        section = dataclasses.replace(params.eval_input, disable_eval_metrics=True)
        params = dataclasses.replace(params, eval_input=section)
    room, data = registry.load_model(params.model_name)
    tree = schema.as_tree(params)
    with tf.Graph().as_default():
        features, labels = tf.data.make_one_shot_iterator(data.INPUTS.blank(tree)).get_next()
        room.model_fn(features, labels, tf.estimator.ModeKeys.EVAL, tree)
        return tf.trainable_variables()


def count(variables):
    """Returns the number of elements of variables."""
    return sum(variable.shape.num_elements() for variable in variables)


def count_by_layers(params):
    """Returns the number of parameters of a model of equal layers, from graphs of one and two."""
    one, two = (count(build(params, layers)) for layers in (1, 2))
    return one + (params.model.num_hidden_layers - 1) * (two - one)
