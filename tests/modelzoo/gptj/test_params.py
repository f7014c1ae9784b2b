"""Tests of modelzoo/gptj/params.py: initializers that depend on the sizes of the model."""

from __future__ import annotations

import pytest

from cerebras_tf.config import schema
from modelzoo.common.config.sections import Normal, TruncatedNormal, VarianceScaling
from modelzoo.gptj.params import GptjModelParams
from tests.messages import names

LAYERS, TOKENS = 4, 100
SIZES = {"hidden_size": 8, "num_hidden_layers": LAYERS, "num_heads": 2, "filter_size": 16}
SCALING = {"name": "variance_scaling"}
SCALED = {"name": "scaled_init_normal"}


def build(settings):
    report = schema.Report("f.yaml")
    return schema.build(GptjModelParams, {**SIZES, "initializer": settings}, report), report


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SCALING, VarianceScaling("variance_scaling", 1.0)),
        ({**SCALING, "scale": 0.0}, VarianceScaling("variance_scaling", 0.0)),
        ({**SCALING, "scale_type": "wang_init"}, VarianceScaling("variance_scaling", 4 / 16)),
        (
            {**SCALING, "scale_type": "small_init", "mode": "fan_out"},
            VarianceScaling("variance_scaling", 0.4, "fan_out"),
        ),
        (SCALED, TruncatedNormal("truncated_normal", 0.0, 1.0)),
        ({**SCALED, "key": "vocab_size"}, TruncatedNormal("truncated_normal", 0.0, 0.1)),
        (
            {**SCALED, "key": "num_hidden_layers", "sigma": 3.0, "distribution": "normal"},
            Normal("normal", 0.0, 3.0 / 8**0.5),
        ),
    ],
)
def test_initializers_of_the_original_follow_the_sizes(settings, expected):
    params, _ = build([settings])
    assert params.initializer_of("initializer", TOKENS) == expected
    saved = schema.as_tree(params)["initializer"]
    assert build(saved)[0].initializer_of("initializer", TOKENS) == expected


def test_scale_and_its_name_exclude_one_another():
    _, report = build({**SCALING, "scale": 1.0, "scale_type": "wang_init"})
    assert names(report.text(), "initializer.scale cannot be combined with scale_type")
