"""SQuAD's files, windows over paragraphs, and the choice of answers from logits."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.fine_tuning.question_encoding import (
    EncodingSettings,
    Window,
    WindowEncoder,
    answer_positions,
    most_context,
    split_spans,
    token_span,
)
from modelzoo.common.fine_tuning.squad_files import read_articles
from modelzoo.common.fine_tuning.squad_predictions import Answer, Choice, choose, expected_f1
from tests.messages import raises
from tests.modelzoo.bert.fine_tuning.made_data import DATA, VOCAB_FILE, VOCABULARY, write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad


def test_articles_paragraphs_and_answers_are_read(tmp_path):
    made = articles(3, with_negative=True)
    read = read_articles(str(write_squad(tmp_path / "a.json", made)))
    assert [article[0].article for article in read] == ["article 0", "article 1", "article 2"]
    for article, expected in zip(read, made):
        for paragraph, other in zip(article, expected["paragraphs"]):
            assert paragraph.context == other["context"]
            (asked,) = paragraph.questions
            assert asked.id == other["qas"][0]["id"]
            for text, start in asked.answers:
                assert paragraph.context[start : start + len(text)] == text
    assert read[1][1].questions[0].answers == ()


def test_answers_of_an_impossible_question_do_not_count(tmp_path):
    made = articles(1)
    made[0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    read = read_articles(str(write_squad(tmp_path / "a.json", made)))
    assert read[0][0].questions[0].answers == ()


def question(**changes):
    """A file with one question, as JSON text."""
    asked = {"question": "q", "id": "i", "answers": [], **changes}
    return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "a", "qas": [asked]}]}]})


def answer(start):
    return question(answers=[{"text": "a", "answer_start": start}])


ARTICLE = "article 't'"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (answer(0.9), [ARTICLE, "answer_start 0.9"]),
        (question(is_impossible="false"), [ARTICLE, "is_impossible 'false'"]),
        (question(id="\ud800"), [ARTICLE, "ud800"]),
        (question(question=" "), [ARTICLE, "question 'i'"]),
        (question(answers=[{"text": "a"}]), [ARTICLE, "answer_start"]),
        ("{", ["a.json:1"]),
        (b"\x1f\x8b{}", ["a.json:1", "UTF-8", "0x8b"]),
        ("[" * 100_000, ["SQuAD"]),
        ('{"data": []}', ["SQuAD"]),
        ('{"data": ["words"]}', ["article '0'", "words"]),
    ],
)
def test_malformed_file_is_refused(tmp_path, text, facts):
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with raises(DataError, "a.json", *facts):
        read_articles(str(path))


CONTEXT = "The film was warm. A fever, grey rain and stories of plays: bright!"


@pytest.fixture
def encoder(tmp_path):
    settings = EncodingSettings(str(write_vocabulary(tmp_path)), True, 12, 3, 4)
    return WindowEncoder(settings)


def words(ids):
    return [VOCABULARY[number] for number in ids]


@pytest.mark.parametrize(
    ("length", "limit", "stride"), [(0, 5, 2), (4, 5, 2), (23, 5, 2), (9, 3, 7)]
)
def test_parts_cover_every_token_and_fit(length, limit, stride):
    parts = split_spans(length, limit, stride)
    covered = {place for start, count in parts for place in range(start, start + count)}
    assert covered == set(range(length))
    assert all(count <= limit for _, count in parts)
    assert sum(parts[-1]) == length
    steps = {b[0] - a[0] for a, b in zip(parts, parts[1:])}
    assert steps <= {min(stride, limit)}


def test_each_token_has_most_context_in_one_part():
    parts, length = split_spans(23, 8, 3), 23
    chosen = most_context(parts, length)
    for token in range(length):
        sides = {
            number: min(token - start, start + count - 1 - token)
            for number, (start, count) in enumerate(parts)
            if start <= token < start + count
        }
        assert sides[chosen[token]] == max(sides.values())


def test_window_holds_question_and_a_part_of_the_paragraph(encoder):
    context = encoder.context(CONTEXT)
    windows = encoder.windows("was the story of rain fine", context)
    for window in windows:
        assert words(window.ids[: window.first]) == ["[CLS]", "was", "the", "story", "of", "[SEP]"]
        part = window.ids[window.first : -1]
        expected = context.ids[window.start : window.start + window.count]
        np.testing.assert_array_equal(part, expected)
        assert words(window.ids[-1:]) == ["[SEP]"] and len(window.ids) <= 12
    shown = np.zeros(len(context.ids), int)
    for window in windows:
        shown[window.start : window.start + window.count] += window.has_most_context
    assert len(windows) > 2 and (shown == 1).all()


def test_paragraph_is_segment_one(encoder):
    window = encoder.windows("was it", encoder.context("rain and play"))[0]
    assert words(window.ids) == ["[CLS]", "was", "[UNK]", "[SEP]", "rain", "and", "play", "[SEP]"]
    assert window.segments.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("answer", ["warm", "grey rain and", "plays", "stories of plays", "bright"])
def test_answer_is_the_fewest_tokens_that_hold_it(encoder, answer):
    context = encoder.context(CONTEXT)
    start = CONTEXT.index(answer)
    first, last = token_span(context, start, start + len(answer))
    assert CONTEXT[context.offsets[first, 0] : context.offsets[last, 1]] == answer


def test_part_of_a_word_is_answered_by_its_piece(encoder):
    context = encoder.context("films")  # film ##s
    assert token_span(context, 1, 4) == (0, 0) and token_span(context, 4, 5) == (1, 1)
    assert token_span(encoder.context("the  film"), 3, 5) is None  # nothing but blanks


def test_window_without_the_whole_answer_points_at_its_beginning(encoder):
    context = encoder.context(CONTEXT)
    for window in encoder.windows("was it", context):
        span = (window.start + 1, window.start + window.count - 1)
        first, last = answer_positions(window, span)
        np.testing.assert_array_equal(
            window.ids[first : last + 1], context.ids[span[0] : span[1] + 1]
        )
        assert answer_positions(window, (span[0], span[1] + 1)) == (0, 0)
        assert answer_positions(window, None) == (0, 0)
        if window.start:
            assert answer_positions(window, (window.start - 1, span[1])) == (0, 0)


def test_long_question_leaves_room_for_the_paragraph(tmp_path):
    settings = EncodingSettings(str(write_vocabulary(tmp_path)), True, 8, 3, 64)
    encoder = WindowEncoder(settings)
    windows = encoder.windows("was the film of the story of rain fine", encoder.context(CONTEXT))
    assert all(len(window.ids) == 8 and window.count == 1 for window in windows)
    with raises(ConfigError, "max_seq_length", 8):
        WindowEncoder(EncodingSettings(settings.vocab_file, max_seq_length=7))


@pytest.mark.slow
def test_every_answer_of_squad_maps_to_tokens_whose_text_it_is():
    """But for the 1 % of answers that begin or end within a WordPiece, and blanks around them."""
    path = DATA / "squad" / "dev-v1.1.json"
    if not path.exists() or not VOCAB_FILE.exists():
        pytest.skip(f"{path} or {VOCAB_FILE} is not there")
    encoder = WindowEncoder(EncodingSettings(str(VOCAB_FILE), do_lower_case=True))
    total, equal = 0, 0
    for article in read_articles(str(path)):
        for paragraph in article:
            text = paragraph.context
            context = encoder.context(text)
            for question in paragraph.questions:
                for answer, start in question.answers:
                    first, last = token_span(context, start, start + len(answer))
                    begin, end = context.offsets[first, 0], context.offsets[last, 1]
                    assert answer.strip() in text[begin:end], question.id
                    assert context.offsets[first, 1] > start  # the first token has a part of it,
                    assert context.offsets[last, 0] < start + len(answer)  # and so has the last
                    total += 1
                    equal += text[begin:end].strip() == answer.strip()
    assert total == 34_726
    assert equal / total > 0.99, equal / total


RAIN = "Rain fell, warm and grey."
OFFSETS = np.array([[0, 4], [5, 9], [9, 10], [11, 15], [16, 19], [20, 24], [24, 25]])
HEAD = 4  # [CLS] what fell [SEP]


def window(start=0, count=7, most=None):
    ids = np.zeros(HEAD + count + 1, np.int32)
    most = np.ones(count, bool) if most is None else np.array(most)
    return Window(ids, HEAD, start, count, most)


def logits(count=7, **values):
    """Zeros but for ``cls`` and ``t<number of a token of the part>``; padded by two."""
    row = np.full(HEAD + count + 3, -9.0)
    for name, value in values.items():
        row[0 if name == "cls" else HEAD + int(name[1:])] = value
    return row


def texts(choice):
    return [answer.text for answer in choice.best]


def test_likeliest_span_is_the_answer():
    starts, ends = logits(t3=5.0, t0=4.0), logits(t5=3.0, t0=2.0)
    choice = choose(RAIN, OFFSETS, [(window(), starts, ends)], 3, 30)
    assert texts(choice) == ["warm and grey", "Rain fell, warm and grey", "Rain"]
    assert choice.best[0] == Answer("warm and grey", 5.0, 3.0, 3, 5)


def test_end_before_start_and_long_answers_are_left_out():
    starts, ends = logits(t3=5.0, t0=4.0), logits(t1=9.0, t5=3.0)
    choice = choose(RAIN, OFFSETS, [(window(), starts, ends)], 4, 2)
    assert texts(choice)[0] == "Rain fell"
    assert "warm and grey" not in texts(choice)
    spans = {text: RAIN.index(text) for text in texts(choice)}
    assert all(len(text.replace(",", " ,").split()) <= 2 for text in spans)


def test_question_and_padding_are_no_answers():
    starts, ends = logits(t3=1.0), logits(t3=1.0)
    starts[[1, 2, -1]] = ends[[1, 2, -1]] = 50.0
    choice = choose(RAIN, OFFSETS, [(window(), starts, ends)], 5, 30)
    assert texts(choice)[0] == "warm"


def test_token_begins_answers_only_where_it_has_most_context():
    """The second window is surer of "warm", but the first one shows more of what is around it."""
    first = window(0, 5, [True] * 5)
    second = window(3, 4, [False, False, True, True])
    parts = [
        (first, logits(5, t3=2.0), logits(5, t3=2.0)),
        (second, logits(4, t0=8.0, t2=3.0), logits(4, t0=8.0, t2=3.0)),
    ]
    choice = choose(RAIN, OFFSETS, parts, 2, 30)
    assert texts(choice)[0] == "grey" and choice.best[0].score == 6.0
    assert Answer("warm", 2.0, 2.0, 3, 3) in choice.best


def test_no_answer_is_scored_in_the_window_where_it_is_least_likely():
    parts = [
        (window(), logits(cls=1.0, t3=2.0), logits(cls=1.0, t3=2.0)),
        (window(), logits(cls=5.0), logits(cls=5.0)),
    ]
    choice = choose(RAIN, OFFSETS, parts, 3, 30)
    assert choice.null == Answer("", 1.0, 1.0)
    assert choice.null_odds == 2.0 - 4.0
    assert choice.text(version_2=True) == "warm"
    assert choice.text(version_2=True, threshold=-2.5) == ""
    assert choice.text(version_2=False, threshold=-2.5) == "warm"


def test_probabilities_are_the_softmax_of_what_is_listed():
    choice = Choice([Answer("a", 2.0, 1.0), Answer("b", 1.0, 1.0)], Answer("", 2.0, 0.5))
    listed = choice.listed(version_2=True)
    assert [row["text"] for row in listed] == ["a", "", "b"]
    shares = np.exp([3.0, 2.5, 2.0])
    assert [row["probability"] for row in listed] == pytest.approx(list(shares / shares.sum()))
    assert [row["text"] for row in choice.listed()] == ["a", "b"]


def test_an_answer_that_overlaps_likely_ones_may_be_taken_for_the_likeliest():
    likely = [Answer("warm", np.log(0.4), 0.0, 3, 3)]
    likely += [
        Answer(text, np.log(0.3), 0.0, 0, last) for last, text in [(1, "Rain fell"), (2, ",")]
    ]
    np.testing.assert_allclose(expected_f1(likely), [0.4, 0.3 + 0.3 * 0.8, 0.3 + 0.3 * 0.8])
    choice = Choice(likely, Answer("", -1.0, 0.0))
    assert choice.text() == "warm"
    assert choice.text(by_expected_f1=True) == "Rain fell"
    assert choice.text(True, -9.0, by_expected_f1=True) == ""


def test_expected_f1_is_the_mean_over_right_answers_of_the_f1_of_their_tokens():
    random = np.random.default_rng(0)
    answers = [
        Answer(str(n), *random.normal(size=2), first, first + int(random.integers(4)))
        for n, first in enumerate(random.integers(0, 9, 12).tolist())
    ]
    tokens = [set(range(answer.first, answer.last + 1)) for answer in answers]
    shares = np.exp([answer.score for answer in answers])
    f1 = [[2 * len(a & b) / (len(a) + len(b)) for b in tokens] for a in tokens]
    np.testing.assert_allclose(expected_f1(answers), f1 @ shares / shares.sum())
