"""Tests of modelzoo/common/config/yaml_advice.py: every mistake of YAML is told with what to do."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.config.params import read_yaml


@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        ("a:\n\tb: 1\n", 2, "Indent with spaces: YAML takes no tabs there."),
        ("a:\n  b:\t1\n", 2, "Write a blank in place of the tab: YAML takes none there."),
        ("a:1\nb: 2\n", 1, "Put a blank behind the colon of the key."),
        ("a:\n  b:1\n  c: 2\n", 2, "Put a blank behind the colon of the key."),
        ("a:\n  x: 0\n  b:1\n  c: 2\n", 3, "Put a blank behind the colon of the key."),
        ("a:\n  b: 1\n c: 2\n", 3, "Indent the keys of a section alike, and the items of a list."),
        ("a: 1\n  b: 2\n", 2, "Indent the keys of a section alike, and put a value with a colon "),
        ("# \u2028\u2028\u2028\na:1\nb: 2\n", 5, "Put a blank behind the colon of the key."),
        ("a: b: c\n", 1, "and put a value with a colon and a blank in quotes."),
        ("a: 1\nb 2\nc: 3\n", 2, "Write `key: value`, with a colon and a blank behind the key."),
        ("a: [1,\nb: 2\n", 3, "Close the bracket that line 1 opens."),
        ("a: {b: 1]\n", 1, "Close the bracket that line 1 opens."),
        ("a: 1]\n}\n", 2, "Remove the bracket or comma, or put the value in quotes."),
        ("a: 1\nb: 'x\nc: 2\n", 4, "Close the quote that line 2 opens."),
        ("a: 'it's'\n", 1, "Put the whole value in quotes, and write '' for a quote in it."),
        ('a: "\\q"\n', 1, "Write \\\\ for a backslash, or use single quotes."),
        ("a: *.txt\n", 1, "Put a text that begins with *, & or ! in quotes."),
        ("a: {{ size }}\n", 1, "Put a text that begins with { or [ in quotes."),
        ("a: - b\n", 1, "Begin the list on a line of its own, or write [a, b]."),
        ("a: 1\n---\nb: 2\n", 2, "Remove the line ---, or what follows it."),
        ("<<: 3\n", 1, "Check indentation, colons, brackets and quotes of this line and those "),
    ],
)
def test_a_mistake_of_yaml_is_told_with_what_to_do(tmp_path, text, line, advice):
    path = tmp_path / "params_x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    told = str(error.value)
    assert told.startswith(f"{path}: line {line}: this is not YAML: ")
    assert advice in told
    assert "\n" not in told
