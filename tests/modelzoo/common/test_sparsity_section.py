"""The section `sparsity` of a params file gives the sparsifier of its name."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.memoryx.sparsifier import SPARSIFIER_MAP
from modelzoo.common.config.params import load_params
from tests.modelzoo.configs import CONFIGS

TINY = CONFIGS / "params_gpt3_tiny.yaml"


def section(runconfig=None, **given):
    overrides = {"sparsity": given, **(runconfig or {})}
    return load_params(TINY, overrides).sparsity


@pytest.mark.parametrize("name", sorted(SPARSIFIER_MAP))
def test_a_section_gives_the_sparsifier_of_its_name(name):
    given = {"sparsity_level": "0.75", "n_iter": 5, "seed": 3}
    made = section(mask_type=name, **given).sparsifier()
    assert type(made) is SPARSIFIER_MAP[name]
    assert (made.sparsity_level, made.n_iter, made.seed) == (0.75, 5, 3)


def test_levels_by_names_and_distributions():
    made = section(mask_type="topk", sparsity_level={"ffn": 0.9}).sparsifier()
    assert made.get_sparsity_levels({"a/ffn": (4, 4), "b": (4, 4)}) == {"a/ffn": 0.9}
    erk = section(mask_type="topk", sparsity_distribution="erk", erk_power_scale=0).sparsifier()
    assert erk.get_sparsity_levels({"a": (4, 9)}) == {"a": 0.5}
    assert load_params(TINY).sparsity is None


@pytest.mark.parametrize(
    "given, told",
    [
        ({"mask_type": "set"}, "sparsity.mask_type must be one of topk, balanced-topk"),
        ({"mask_type": "topk", "sparsity_level": 1}, "sparsity_level must be 0 or more and less"),
        ({"mask_type": "topk", "sparsity_level": {"a": 2}}, "sparsity_level.a must be 0 or more"),
        ({"mask_type": "topk", "sparsity_level": {}}, "sparsity_level must be a finite number"),
        (
            {"mask_type": "topk", "sparsity_level": {"a": 0.5}, "sparsity_distribution": "er"},
            "sparsity_level must be one number for er",
        ),
        (
            {"mask_type": "topk", "runconfig": {"runconfig.device": "/cpu:0"}},
            "sparsity is kept by the wafer's memory",
        ),
    ],
    ids=str,
)
def test_mistakes_are_told_by_their_keys(given, told):
    with pytest.raises(ConfigError, match=told):
        section(**given)
