"""Tests of json_text.py, and that configurations of other programs are refused by name."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import CerebrasError
from modelzoo.common.convert.hugging_face import read_json
from modelzoo.common.convert.keys import our_nonlinearity
from modelzoo.common.files.json_text import is_finite, parse_json


@pytest.mark.parametrize(
    "text", ["{", "[" * 5000, "[Infinity]", "[NaN]", "[1e400]", '{"a": 1, "a": 1}']
)
def test_what_cannot_be_read_is_a_value_error(tmp_path, text):
    with pytest.raises(ValueError):
        parse_json(text)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CerebrasError, match="config.json: must be a JSON file"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("text", ["[Infinity]", '{"a": [{"b": NaN}]}', "1e400", "-Infinity"])
def test_numbers_that_are_not_finite_are_read_and_told_on_request(text):
    assert not is_finite(parse_json(text, finite=False))


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '{"a": [1, 2.5, null, "NaN", true]}'])
def test_finite_values_are_told(text):
    assert is_finite(parse_json(text, finite=False))


def test_an_activation_that_is_no_text_is_refused():
    with pytest.raises(CerebrasError, match="activation_function must be one of"):
        our_nonlinearity({"activation_function": ["gelu"]}, "activation_function", "x", "c.json")
