"""Tests of the files of vocabularies: damaged, cut or mixed ones are refused."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.tokenizers import tokenizers
from modelzoo.common.tokenizers.tokenizers import line_tokens, require_tokens_differ, word_pieces
from tests.messages import names

pytest.importorskip("tokenizers")

REAL = Path(__file__).resolve().parents[5] / "shared/data/vocab/gpt2"


def pairs_of_letters(folder, added_first=(), added_last=(), damage=list):
    """Writes all 2,704 pairs of 52 letters as a vocabulary and its merges, in their order."""
    letters = string.ascii_letters
    pairs = [f"{a} {b}" for a in letters for b in letters]
    tokens = [*added_first, *letters, *(pair.replace(" ", "") for pair in pairs), *added_last]
    numbers = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *damage(pairs)]))
    return numbers, (str(folder / "vocab.json"), str(folder / "merges.txt"))


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda lines: [], ("'aa'", 2704)),
        (lambda lines: lines[:1703], (1001,)),
        (lambda lines: lines[:-1], ("'ZZ'", "<name>")),
        (lambda lines: lines[1:], ("'aa'",)),
        (lambda lines: [*lines[:9], *lines[10:]], ("'aj'",)),
        (lambda lines: [*lines, lines[-1]], ("twice",)),
        *((lambda lines, more=more: [*lines, more], ()) for more in ("ab d", "a xyz", "a b c")),
    ],
)
def test_damaged_merges_are_refused(tmp_path, damage, facts):
    _, files = pairs_of_letters(tmp_path, damage=damage)
    with pytest.raises(ConfigError) as error:
        tokenizers.load_tokenizer("GPT2Tokenizer", *files)
    assert names(error.value, "merges.txt", *facts)


def test_tokens_added_at_either_end_of_a_vocabulary_need_no_merges(tmp_path):
    first, last = ([f"{side}{n}" for n in range(1000)] for side in ("PAD", "EOS"))
    last[:3] = ["madeupword0000", "<aa>", "[aa]"]
    numbers, files = pairs_of_letters(tmp_path, first, last)
    loaded = tokenizers.load_tokenizer("GPT2Tokenizer", *files)
    assert loaded.encode("ab").tolist() == [numbers["ab"]]
    assert loaded.token_id("PAD0") == 0 and loaded.vocab_size == len(numbers)
    for ends in ((first, [*last, "aaaa"]), (["aaaa"], last)):
        _, files = pairs_of_letters(tmp_path, *ends)
        with pytest.raises(ConfigError) as error:
            tokenizers.load_tokenizer("GPT2Tokenizer", *files)
        assert names(error.value, "merges.txt")


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="needs the vocabulary of GPT-2")
def test_merges_of_gpt2_are_whole_and_refused_where_lines_are_cut_off(tmp_path):
    lines = (REAL / "vocab.bpe").read_text("utf-8").splitlines()
    merges, encoder = tmp_path / "vocab.bpe", str(REAL / "encoder.json")
    merges.write_text("\n".join(lines), "utf-8")
    assert tokenizers.load_tokenizer("GPT2Tokenizer", str(merges), encoder).vocab_size == 50257
    for count in (1, 10, 500):
        merges.write_text("\n".join(lines[:-count]), "utf-8")
        with pytest.raises(ConfigError) as error:
            tokenizers.load_tokenizer("GPT2Tokenizer", str(merges), encoder)
        assert names(error.value, count)


def test_lines_of_a_vocab_txt_are_its_tokens():
    assert word_pieces("[PAD]\r\n\u2028\n\x85\n\n##a\n\n") == ["[PAD]", "\u2028", "\x85", "", "##a"]


@pytest.mark.parametrize("first", [[], ["<pad>", "<unk>", "<s>", "</s>"]])
def test_special_tokens_come_first_where_a_file_lacks_them(first):
    found = line_tokens([*first, "cat 5", "", "dog"])
    assert found == ["<pad>", "<unk>", "<s>", "</s>", "cat", "dog"]


@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_token_twice_is_named_with_its_lines(kind):
    tokens = [kind(token) for token in ("a", "b", "\u2028", "b")]
    require_tokens_differ("v.txt", tokens[:3])
    with pytest.raises(ConfigError) as error:
        require_tokens_differ("v.txt", tokens)
    assert names(error.value, "v.txt", "'b'", "lines 2 and 4")
