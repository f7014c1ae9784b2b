"""Tests of modelzoo/common/metrics/rouge.py: the package rouge_score, the definitions, examples."""

from __future__ import annotations

import itertools
import random

import pytest

from cerebras_tf.errors import DataError
from modelzoo.common.metrics import rouge as module
from modelzoo.common.metrics.rouge import mean_rouge, ngrams, rouge, rouge_l, rouge_n, tokenize

WORDS = ["a", "b", "c", "d", "e", "f"]


def summaries(seed, number):
    """Pairs of a few short sentences of few words, so that much is shared; some are empty."""
    generator = random.Random(seed)
    for _ in range(number):
        yield [
            [generator.choices(WORDS, k=generator.randint(1, 8)) for _ in range(count)]
            for count in (generator.randint(0, 4), generator.randint(0, 4))
        ]


def text(sentences):
    return "\n".join(" ".join(sentence) for sentence in sentences)


def test_all_scores_equal_those_of_the_package_rouge_score():
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge_score is not installed")
    oracle = scorer.RougeScorer(list(module.ROUGE_TYPES), use_stemmer=False)
    for prediction, reference in summaries(0, 150):
        wanted = oracle.score(text(reference), text(prediction))
        for name, found in rouge(prediction, reference).items():
            assert found == pytest.approx(tuple(wanted[name])), (name, prediction, reference)


def test_words_are_split_as_in_the_package_rouge_score():
    oracle = pytest.importorskip("rouge_score.tokenize", reason="rouge_score is not installed")
    for line in (
        "It's U.S. $3.50, na\u00efve--caf\u00e9",
        "",
        " \n\tTabs & [CLS] under_score",
        "\u4e2d\u6587 x1",
    ):
        assert tokenize(line) == oracle.tokenize(line, None)


def test_rouge_n_of_the_example_of_the_paper():
    """Lin 2004, section 3.1: three candidates for "police killed the gunman"."""
    reference = ["police", "killed", "the", "gunman"]
    second, third = ["police", "kill", "the", "gunman"], ["the", "gunman", "kill", "police"]
    assert rouge_n(second, reference, 2).f1_score == rouge_n(third, reference, 2).f1_score
    assert rouge_l(second, reference).f1_score == 0.75
    assert rouge_l(third, reference).f1_score == 0.5


def test_rouge_l_of_a_summary_takes_the_union_of_the_paper():
    """Lin 2004, section 3.2: w1 w2 w6 w7 w8 and w1 w3 w8 w9 w5 share 4 of 5 words."""
    reference = [[1, 2, 3, 4, 5]]
    found = module.rouge_l_summary([[1, 2, 6, 7, 8], [1, 3, 8, 9, 5]], reference)
    assert found.recall == 4 / 5 and found.precision == 4 / 10


def longest_common_subsequence(a, b):
    """By trying all subsequences of `a`, longest first."""
    for size in range(len(a), -1, -1):
        for places in itertools.combinations(range(len(a)), size):
            rest = iter(b)
            if all(a[place] in rest for place in places):
                return size
    return 0


def test_both_ways_to_the_longest_common_subsequence_find_it():
    generator = random.Random(1)
    for _ in range(100):
        a, b = (generator.choices(WORDS, k=generator.randint(0, 8)) for _ in range(2))
        wanted = longest_common_subsequence(a, b)
        assert module.lcs_length(a, b) == wanted
        places = sorted(module.lcs_places(a, b))
        rest = iter(b)
        assert len(places) == wanted and all(a[place] in rest for place in places)


def test_a_longest_common_subsequence_may_be_longer_than_a_machine_word():
    assert module.lcs_length(list(range(300)), list(range(0, 600, 2))) == 150


def test_swapping_the_sides_swaps_precision_and_recall():
    for prediction, reference in summaries(2, 30):
        whole = [list(itertools.chain(*side)) for side in (prediction, reference)]
        for found, other in (
            (rouge_n(*whole, 2), rouge_n(*whole[::-1], 2)),
            (rouge_l(*whole), rouge_l(*whole[::-1])),
        ):
            assert found == (other.recall, other.precision, other.f1_score)


def test_numbers_score_as_words_do():
    numbers = {word: place for place, word in enumerate(WORDS)}
    for pair in summaries(3, 20):
        as_numbers = [[[numbers[word] for word in line] for line in side] for side in pair]
        assert rouge(*as_numbers) == rouge(*pair)


def test_ngrams_of_a_list_shorter_than_n_are_none():
    assert ngrams(["a"], 2) == {}
    assert ngrams(["a", "b", "a", "b"], 2) == {("a", "b"): 2, ("b", "a"): 1}


def test_a_summary_equal_to_its_reference_scores_one_and_an_empty_one_zero():
    lines = [["a", "b"], ["c"]]
    assert {tuple(score) for score in rouge(lines, lines).values()} == {(1.0, 1.0, 1.0)}
    assert {tuple(score) for score in rouge([], lines).values()} == {(0.0, 0.0, 0.0)}
    assert {tuple(score) for score in rouge([], []).values()} == {(0.0, 0.0, 0.0)}


def test_mean_rouge_is_the_mean_of_examples_in_percent():
    found = mean_rouge(["The cat sat.", "dogs"], ["the cat\nsat", "cats"])
    assert found["rouge1-f1_score"] == found["rougeL-recall"] == 50.0
    assert len(found) == 12


def test_mean_rouge_refuses_lists_that_do_not_go_together():
    with pytest.raises(DataError, match="Received: 1 summaries, 2 references"):
        mean_rouge(["a"], ["a", "b"])
    with pytest.raises(DataError, match="Received: 0 summaries, 0 references"):
        mean_rouge([], [])
