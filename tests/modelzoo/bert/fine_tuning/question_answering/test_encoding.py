"""Tests of windows: layout, overlap, the context of tokens, and answers as tokens."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.bert.fine_tuning.question_answering.encoding import (
    EncodingSettings,
    WindowEncoder,
    answer_positions,
    most_context,
    split_spans,
    token_span,
)
from modelzoo.bert.fine_tuning.question_answering.squad_files import read_articles
from tests.modelzoo.bert.fine_tuning.made_data import DATA, VOCAB_FILE, VOCABULARY, write_vocabulary

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
    with pytest.raises(ConfigError, match="max_seq_length: must be at least 8"):
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
