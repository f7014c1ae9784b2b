"""Loads the configs, counts their models' parameters, and reads their page. Holds no tests."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.config import schema
from modelzoo.common.config import registry
from modelzoo.common.config.params import load_params

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
PAGE = ROOT / "docs" / "reference" / "models.md"


@functools.cache
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
        changed = dataclasses.replace(params.model, num_hidden_layers=layers)
        params = dataclasses.replace(params, model=changed)
    if hasattr(params.eval_input, "disable_eval_metrics"):  # they may need files of the data
        section = dataclasses.replace(params.eval_input, disable_eval_metrics=True)
        params = dataclasses.replace(params, eval_input=section)
    model, data = registry.load_model(params.model_name)
    tree = schema.as_tree(params)
    with tf.Graph().as_default():
        features, labels = tf.data.make_one_shot_iterator(data.INPUTS.blank(tree)).get_next()
        model.model_fn(features, labels, tf.estimator.ModeKeys.EVAL, tree)
        return tf.trainable_variables()


def count(variables):
    """Returns the number of elements of variables."""
    return sum(variable.shape.num_elements() for variable in variables)


def count_by_layers(params):
    """Returns the number of parameters of a model of equal layers, from graphs of one and two."""
    one, two = (count(build(params, layers)) for layers in (1, 2))
    return one + (params.model.num_hidden_layers - 1) * (two - one)


def cells_of(model_name):
    """Returns the cells after each config of a model in the page's tables, by the config's name."""
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        config = CONFIGS / f"params_{cells[0].strip('`')}.yaml"
        if len(cells) > 2 and config.exists() and load(config.stem).model_name == model_name:
            rows[config.stem] = cells[1:]
    return rows
