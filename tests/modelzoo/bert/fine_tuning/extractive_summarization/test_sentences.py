"""Sentences of articles: their tokens, the labels of the best ones, and which are picked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from modelzoo.common.fine_tuning.article_encoding import (
    ArticleEncoder,
    EncodingSettings,
    pad_article,
)
from modelzoo.common.fine_tuning.selection import greedy_oracle, select, summaries
from modelzoo.common.metrics.rouge import rouge_n, tokenize
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_vocabulary

PARAGRAPHS = ["The film was grey. A warm rain and a play.", "Of plays.", "The story of the film."]


@pytest.fixture
def encode(tmp_path):
    def call(paragraphs=PARAGRAPHS, **limits):
        limits = {"max_sequence_length": 40, "min_tokens_per_sentence": 2, **limits}
        settings = EncodingSettings(str(write_vocabulary(tmp_path)), True, **limits)
        return ArticleEncoder(settings).encode(paragraphs, ["A film."])

    return call


def words(ids):
    return " ".join(VOCABULARY[number] for number in ids)


def test_each_sentence_stands_between_its_marks(encode):
    article = encode()
    assert article.sentences == [
        "The film was grey.",
        "A warm rain and a play.",
        "Of plays.",
        "The story of the film.",
    ]
    assert words(article.ids) == (
        "[CLS] the film was grey . [SEP] [CLS] a warm rain and a play . [SEP] "
        "[CLS] of play ##s . [SEP] [CLS] the story of the film . [SEP]"
    )
    assert [VOCABULARY[article.ids[place]] for place in article.cls_indices] == ["[CLS]"] * 4
    assert len(article.cls_indices) == list(article.ids).count(VOCABULARY.index("[CLS]"))


def test_segments_alternate(encode):
    article = encode()
    ends = [*article.cls_indices[1:], len(article.ids)]
    for number, (begin, end) in enumerate(zip(article.cls_indices, ends)):
        assert set(article.segments[begin:end]) == {number % 2}


def test_short_sentences_are_not_seen_and_long_ones_cut(encode):
    article = encode(min_tokens_per_sentence=5, max_tokens_per_sentence=6)
    assert "Of plays." not in article.sentences
    assert article.sentences[1] == "A warm rain and a play."
    assert "[CLS] a warm rain and a play [SEP]" in words(article.ids)


@pytest.mark.parametrize("key", ["max_cls_tokens", "max_sentences_per_sequence"])
def test_number_of_sentences_is_limited(encode, key):
    assert len(encode(**{key: 2}).sentences) == 2


def test_last_sentence_is_cut_where_the_sequence_ends(encode):
    article = encode(max_sequence_length=13)
    assert words(article.ids) == "[CLS] the film was grey . [SEP] [CLS] a warm rain and [SEP]"
    assert len(encode(max_sequence_length=10).sentences) == 1  # no room for two of its tokens


def test_rows_are_padded(encode):
    article = encode(max_sequence_length=13)
    rows = pad_article(article, 16, 4, 0)
    assert rows["input_mask"].tolist() == [1] * 13 + [0] * 3
    assert rows["input_ids"][13:].tolist() == rows["segment_ids"][13:].tolist() == [0] * 3
    assert rows["cls_indices"].tolist() == [0, 7, 0, 0]
    assert rows["cls_weights"].tolist() == [1, 1, 0, 0]
    assert rows["cls_weights"].dtype == np.float32


def test_article_of_short_sentences_has_none(encode):
    article = encode(["Fine."], min_tokens_per_sentence=5)
    assert article.sentences == [] and len(article.ids) == 0


def test_highlights_are_tokens_with_a_mark_after_each_sentence(tmp_path):
    settings = EncodingSettings(str(write_vocabulary(tmp_path)), True, max_highlight_tokens=8)
    encoder = ArticleEncoder(settings)
    assert words(encoder.highlight_ids(["A film", "rain"])) == (
        "a film [SEP] rain [SEP] [PAD] [PAD] [PAD]"
    )
    assert words(encoder.highlight_ids(["a film was grey", "a play of rain"])) == (
        "a film was grey [SEP] a play of"
    )


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


CLS, SEP = 2, 3


@pytest.mark.parametrize(
    ("probabilities", "count", "top_k", "picked"),
    [
        ([0.9, 0.1, 0.5, 0.49], 4, None, [0, 2]),
        ([0.1, 0.4, 0.3], 3, None, [1]),  # none is likely: the likeliest
        ([0.1, 0.4, 0.9], 2, None, [1]),  # the third is padding
        ([0.1, 0.7, 0.3, 0.9], 4, 3, [1, 2, 3]),
        ([0.2, 0.2, 0.2], 3, 2, [0, 1]),
        ([0.2, 0.3], 2, 3, [0, 1]),
        ([], 0, 3, []),
    ],
)
def test_picked_sentences(probabilities, count, top_k, picked):
    assert select(probabilities, count, top_k) == picked


def batch():
    ids = np.array([[CLS, 5, 6, SEP, CLS, 7, SEP, CLS, 8, 9], [CLS, 5, SEP, 0, 0, 0, 0, 0, 0, 0]])
    indices = np.array([[0, 4, 7], [0, 0, 0]])
    weights = np.array([[1, 1, 1], [1, 0, 0]])
    labels = np.array([[0, 1, 1], [1, 0, 0]])
    probabilities = np.array([[0.9, 0.2, 0.8], [0.1, 0.9, 0.9]])
    return ids, indices, weights, labels, probabilities


def test_sentences_of_a_batch_are_its_tokens():
    pairs = summaries(*batch(), sep_id=SEP, top_k=None)
    assert pairs[0] == ([[5, 6], [8, 9]], [[7], [8, 9]])
    assert pairs[1] == ([[5]], [[5]])


def test_true_summaries_are_those_of_the_records_where_there_are_any():
    highlights = np.array([[5, 6, SEP, 7, SEP, 0], [9, SEP, 0, 0, 0, 0]])
    pairs = summaries(*batch(), highlights, sep_id=SEP, top_k=1)
    assert pairs[0] == ([[5, 6]], [[5, 6], [7]])
    assert pairs[1] == ([[5]], [[9]])
