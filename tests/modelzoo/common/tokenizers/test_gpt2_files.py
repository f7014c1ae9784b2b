"""Checks which pairs of vocabulary and merges are refused: damaged, cut, or of two models."""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.tokenizers import tokenizers
from modelzoo.common.tokenizers.tokenizers import check_merges

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
    ("damage", "told"),
    [
        (lambda lines: [], "none that makes 'aa', one of 2704 such tokens"),
        (lambda lines: lines[:1703], "none that makes .*one of 1001 such tokens"),
        (lambda lines: lines[:1704], "none that makes .*one of 1000 such tokens"),
        (lambda lines: lines[:-1], "none that makes 'ZZ', one of 1 such tokens. Copy .* as <name>"),
        (lambda lines: lines[1:], "none that makes 'aa', one of 1 such tokens"),
        (lambda lines: [*lines[:9], *lines[10:]], "none that makes 'aj', one of 1 such tokens"),
        (lambda lines: [*lines, lines[-1]], "a line that stands twice"),
    ],
)
def test_damaged_merges_are_refused(tmp_path, damage, told):
    _, files = pairs_of_letters(tmp_path, damage=damage)
    with pytest.raises(ConfigError, match=f"merges.txt: must hold the merges .*{told}"):
        tokenizers.load_tokenizer("GPT2Tokenizer", *files)


def test_tokens_added_at_either_end_of_a_vocabulary_need_no_merges(tmp_path):
    first, last = ([f"{side}{n}" for n in range(1000)] for side in ("PAD", "EOS"))
    numbers, files = pairs_of_letters(tmp_path, first, last)
    loaded = tokenizers.load_tokenizer("GPT2Tokenizer", *files)
    assert loaded.encode("ab").tolist() == [numbers["ab"]]
    assert loaded.token_id("PAD0") == 0 and loaded.vocab_size == len(numbers)
    for ends in ((first, [*last, "more"]), (["more", *first], last)):
        _, files = pairs_of_letters(tmp_path, *ends)
        with pytest.raises(ConfigError, match="none that makes .*, one of 1001 such tokens"):
            tokenizers.load_tokenizer("GPT2Tokenizer", *files)


@pytest.mark.parametrize("count", [27, 28])
def test_one_merge_of_a_hundred_may_stand_before_those_of_its_parts(tmp_path, count):
    letters = string.ascii_letters[:count]
    numbers, files = pairs_of_letters(
        tmp_path,
        added_last=["abc", *(f"abc{letter}" for letter in letters)],
        damage=lambda pairs: [*(f"abc {letter}" for letter in letters), *pairs, "ab c"],
    )
    if count == 27:
        loaded = tokenizers.load_tokenizer("GPT2Tokenizer", *files)
        assert loaded.encode("abcd").tolist() == [numbers["ab"], numbers["cd"]]
        return
    with pytest.raises(ConfigError, match="'abc a' before .* one of 28 such lines of 2733"):
        tokenizers.load_tokenizer("GPT2Tokenizer", *files)


@pytest.mark.parametrize("line", ["ab d", "xyz a", "a xyz", "a", "a b c"])
def test_parts_and_results_of_merges_are_tokens(tmp_path, line):
    _, files = pairs_of_letters(tmp_path, damage=lambda pairs: [*pairs, line])
    with pytest.raises(ConfigError, match="Take two files that belong together"):
        tokenizers.load_tokenizer("GPT2Tokenizer", *files)


def test_merges_that_are_all_gone_are_no_added_tokens():
    pairs = [*itertools.product("ab", "cdefghijkl")]
    tokens = [*"abcdefghijkl", *map("".join, pairs)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    check_merges("merges.txt", pairs, "vocab.json", vocabulary)
    with pytest.raises(ConfigError, match="none that makes 'ac', one of 20 such tokens"):
        check_merges("merges.txt", [], "vocab.json", vocabulary)


def test_tokens_that_roberta_fills_up_with_or_in_brackets_need_no_merges(tmp_path):
    added = ["madeupword0000", "<aa>", "[aa]"]
    numbers, files = pairs_of_letters(tmp_path, added_last=added)
    assert tokenizers.load_tokenizer("GPT2Tokenizer", *files).token_id("[aa]") == numbers["[aa]"]
    _, files = pairs_of_letters(tmp_path, added_last=[*added, "aaaa"])
    with pytest.raises(ConfigError, match="none that makes 'aaaa', one of 1 such tokens"):
        tokenizers.load_tokenizer("GPT2Tokenizer", *files)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="needs the vocabulary of GPT-2")
def test_merges_of_gpt2_are_whole_and_refused_where_lines_are_cut_off(tmp_path):
    lines = (REAL / "vocab.bpe").read_text("utf-8").splitlines()
    merges, encoder = tmp_path / "vocab.bpe", str(REAL / "encoder.json")
    merges.write_text("\n".join(lines), "utf-8")
    assert tokenizers.load_tokenizer("GPT2Tokenizer", str(merges), encoder).vocab_size == 50257
    for count in (1, 10, 500):
        merges.write_text("\n".join(lines[:-count]), "utf-8")
        with pytest.raises(ConfigError, match=f"one of {count} such tokens"):
            tokenizers.load_tokenizer("GPT2Tokenizer", str(merges), encoder)
