"""Tests of an article's tokens: layout, segments, and what the limits drop or cut."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.bert.fine_tuning.extractive_summarization.encoding import (
    ArticleEncoder,
    EncodingSettings,
    pad_article,
)
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
