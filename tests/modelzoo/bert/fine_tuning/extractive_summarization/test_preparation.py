"""Records of articles, and what prediction computes around the model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.bert.fine_tuning.extractive_summarization.preparation import prepare
from modelzoo.common.data.preparation.cnn_dailymail import read_articles
from modelzoo.common.fine_tuning.article_encoding import (
    ArticleEncoder,
    EncodedArticle,
    EncodingSettings,
)
from modelzoo.common.fine_tuning.selection import summaries
from modelzoo.common.fine_tuning.summary_predictions import as_row, baselines, rouge_of, with_empty
from tests.modelzoo.bert.fine_tuning.extractive_summarization.made_articles import (
    rows,
    write_jsonl,
    write_story,
)
from tests.modelzoo.bert.fine_tuning.made_data import DATA, VOCAB_FILE, VOCABULARY, write_vocabulary
from tests.reading import records_of


def settings(tmp_path, **keys):
    keys = {"max_sequence_length": 80, "max_cls_tokens": 9, **keys}
    return EncodingSettings(str(write_vocabulary(tmp_path)), True, **keys)


def read(folder):
    return [{n: np.array(values) for n, values in row.items()} for row in records_of(folder)]


def test_labelled_sentences_are_the_highlights(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows(12))
    manifest = prepare(str(path), tmp_path / "out", settings(tmp_path))
    found = read(tmp_path / "out")
    assert manifest["counts"]["articles"] == len(found) == 12
    sep = VOCABULARY.index("[SEP]")
    for row in found:
        columns = [row[n][None] for n in ("input_ids", "cls_indices", "cls_weights", "labels")]
        labels = row["labels"][None].astype(float)
        ((ours, _),) = summaries(*columns, labels, sep_id=sep, top_k=None)
        highlights = row["highlight_ids"][None]
        ((_, theirs),) = summaries(*columns, labels, highlights, sep_id=sep, top_k=None)
        assert ours == theirs
        assert row["cls_weights"].sum() == (row["input_ids"] == VOCABULARY.index("[CLS]")).sum()
        assert row["input_mask"].sum() == (row["input_ids"] != 0).sum()  # 1 = token


def test_stories_make_the_records_of_their_rows(tmp_path):
    made = rows(3)
    (tmp_path / "stories").mkdir()
    for row in made:
        write_story(tmp_path / "stories" / f"{row['id']}.story", row)
    prepare(str(tmp_path / "stories"), tmp_path / "a", settings(tmp_path))
    path = write_jsonl(tmp_path / "a.jsonl", made)
    prepare(str(path), tmp_path / "b", settings(tmp_path))
    for ours, theirs in zip(read(tmp_path / "a"), read(tmp_path / "b")):
        for name, values in theirs.items():
            np.testing.assert_array_equal(ours[name], values, name)


def test_articles_without_enough_sentences_or_labels_are_counted(tmp_path):
    made = rows(4)
    made[0]["article"] = made[0]["article"].split("\n")[0]
    made[2]["highlights"] = "nothing shared"
    path = write_jsonl(tmp_path / "a.jsonl", made)
    counts = prepare(str(path), tmp_path / "out", settings(tmp_path))["counts"]
    assert counts == {
        "articles": 4,
        "skipped_too_short": 1,
        "skipped_without_label": 1,
        "records": 2,
    }


NONE = np.zeros(0, np.int32)


def article(sentences, highlights):
    return EncodedArticle(sentences, NONE, NONE, NONE, highlights)


def test_row_holds_the_picked_sentences_in_their_order():
    articles = [article(["a b", "c d", "e f"], ["c d"]), article(["x"], [])]
    probabilities = np.array([0.7, 0.2, 0.9, 0.99])  # the last place is padding
    row = as_row(articles, {"article_ids": [0], "probabilities": probabilities}, 2)
    assert row["sentences"] == [0, 2] and row["summary"] == "a b\ne f"
    assert row["reference"] == "c d" and row["probabilities"] == [0.7, 0.2, 0.9]
    assert (
        as_row(articles, {"article_ids": [1], "probabilities": probabilities}, 3)["summary"] == "x"
    )


def test_lead_and_oracle_are_scored_as_what_they_are():
    first = article(["a b", "c d", "e f", "g h"], ["a b", "c d", "e f"])
    last = article(["a b", "c d", "e f", "g h"], ["g h"])
    scores = baselines([first, last])
    assert scores["lead-3/rouge1-f1_score"] == pytest.approx(50.0)
    assert scores["oracle/rougeLsum-f1_score"] == pytest.approx(100.0)
    assert 0 < scores["random-3/rouge1-f1_score"] < 100
    perfect = [{"summary": "a b", "reference": "a b"}]
    assert rouge_of(perfect)["rouge2-f1_score"] == pytest.approx(100.0)


def test_article_without_sentences_has_an_empty_summary_under_its_own_number():
    articles = [article([], ["a"]), article(["x"], []), article([], ["b"]), article(["y"], [])]
    rows = [as_row(articles, {"article_ids": [n], "probabilities": [0.7]}, 1) for n in (1, 3)]
    found = with_empty(rows, articles)
    assert [(row["number"], row["summary"]) for row in found] == [
        (0, ""),
        (1, "x"),
        (2, ""),
        (3, "y"),
    ]
    assert with_empty(rows[:1], articles) == found[:2]  # predict_steps ended there


@pytest.mark.slow
def test_first_sentences_of_news_summarize_better_than_drawn_ones_and_labels_best():
    path = DATA / "cnn_dm" / "validation.jsonl"
    if not path.exists() or not VOCAB_FILE.exists():
        pytest.skip(f"{path} or {VOCAB_FILE} is not there")
    encoder = ArticleEncoder(EncodingSettings(str(VOCAB_FILE), do_lower_case=True))
    rows = itertools.islice(read_articles(str(path)), 100)
    articles = [encoder.encode(*row) for row in rows]
    assert all(len(a.sentences) >= 3 and len(a.ids) <= 512 for a in articles)
    scores = baselines(articles)
    for name in ("rouge1-f1_score", "rouge2-f1_score", "rougeLsum-f1_score"):
        order = [scores[f"{kind}/{name}"] for kind in ("random-3", "lead-3", "oracle")]
        assert order == sorted(order) and order[2] > order[1] + 5, name
