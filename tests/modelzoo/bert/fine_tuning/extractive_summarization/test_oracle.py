"""Tests of the greedy choice of sentences, against scores computed another way."""

from __future__ import annotations

import itertools

import numpy as np

from modelzoo.bert.fine_tuning.extractive_summarization.selection import greedy_oracle
from modelzoo.common.metrics.rouge import rouge_n, tokenize


def value(sentences, highlights):
    """ROUGE-1 plus ROUGE-2, n-grams kept within sentences by words that are never shared."""
    sides = []
    for mark, side in (("<", sentences), (">", highlights)):
        lines = [tokenize(line) for line in side]
        sides.append(lines)
        sides.append(
            list(itertools.chain(*([*line, f"{mark}{n}"] for n, line in enumerate(lines))))
        )
    one = rouge_n(list(itertools.chain(*sides[0])), list(itertools.chain(*sides[2])), 1).f1_score
    pairs = [[f"{a} {b}" for line in side for a, b in zip(line, line[1:])] for side in sides[::2]]
    return one + rouge_n(*pairs, 1).f1_score


def drawn(seed):
    generator = np.random.default_rng(seed)
    words = ["rain", "falls", "on", "a", "red", "barrow", "today"]
    return [" ".join(generator.choice(words, generator.integers(1, 7))) for _ in range(8)]


def test_each_sentence_is_the_best_to_add_and_none_is_left_that_helps():
    for seed in range(12):
        sentences, highlights = drawn(seed), drawn(100 + seed)[:2]
        picked: list[int] = []
        while len(picked) < 3:
            best = max(
                (place for place in range(8) if place not in picked),
                key=lambda place: value([sentences[p] for p in (*picked, place)], highlights),
            )
            if value([sentences[p] for p in (*picked, best)], highlights) <= value(
                [sentences[p] for p in picked], highlights
            ):
                break
            picked.append(best)
        assert greedy_oracle(sentences, highlights) == sorted(picked)


def test_sentences_of_the_summary_are_found_whatever_their_case():
    sentences = ["It rained.", "The barrow, it is RED!", "So much depends upon that.", "It rained."]
    assert greedy_oracle(sentences, ["the barrow it is red", "so much depends upon that"]) == [1, 2]


def test_nothing_shared_means_nothing_picked():
    assert greedy_oracle(["a b", "c d"], ["e f"]) == []
    assert greedy_oracle([], ["e f"]) == []


def test_the_number_of_sentences_is_limited():
    sentences = [f"word{n} goes" for n in range(6)]
    assert len(greedy_oracle(sentences, [" ".join(sentences)])) == 3
    assert len(greedy_oracle(sentences, [" ".join(sentences)], count=5)) == 5
