"""Answers to SQuAD that need no model: what a trained one is measured against."""

from __future__ import annotations

import zlib

from modelzoo.bert.sentences import split_sentences
from modelzoo.common.metrics.squad import normalize

SPAN_WORDS = 3  # the answers of SQuAD 1.1's development set have 2.9 words on average


def random_span(context, question):
    """Returns SPAN_WORDS words from a place that depends on nothing but the question's id.

    Args:
        context: text of the paragraph.
        question: squad_files.Question.
    """
    words = context.split()
    places = max(1, len(words) - SPAN_WORDS + 1)
    place = zlib.crc32(question.id.encode("utf-8")) % places
    return " ".join(words[place : place + SPAN_WORDS])


def first_words(context, question):
    """Returns the first SPAN_WORDS words of the paragraph."""
    return " ".join(context.split()[:SPAN_WORDS])


def closest_sentence(context, question):
    """Returns the whole sentence that shares most words with the question, of several the first."""
    asked = set(normalize(question.text).split())
    sentences = split_sentences(context) or [context]
    return max(sentences, key=lambda sentence: len(asked & set(normalize(sentence).split())))


BASELINES = {
    "random-span": random_span,
    "first-words": first_words,
    "closest-sentence": closest_sentence,
}
