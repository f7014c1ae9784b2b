"""Tests of line_vocabulary.py: a token a line, each once."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.tokenizers.tokenizers import line_tokens, require_tokens_differ, word_pieces


def test_lines_of_a_vocab_txt_are_its_tokens():
    assert word_pieces("[PAD]\r\n\u2028\n\x85\n\n##a\n\n") == ["[PAD]", "\u2028", "\x85", "", "##a"]


@pytest.mark.parametrize("first", [[], ["<pad>", "<unk>", "<s>", "</s>"]])
def test_special_tokens_come_first_where_a_file_lacks_them(first):
    assert line_tokens([*first, "cat 5", "", "dog"]) == [
        "<pad>",
        "<unk>",
        "<s>",
        "</s>",
        "cat",
        "dog",
    ]


@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_token_twice_is_told_with_its_lines(kind):
    tokens = [kind(token) for token in ("a", "b", "\u2028", "b")]
    require_tokens_differ("v.txt", tokens[:3])
    with pytest.raises(ConfigError, match=r"v.txt: .*Received: b?'b' on lines 2 and 4\. Copy"):
        require_tokens_differ("v.txt", tokens)
