"""Tests of modelzoo/transformer/beam_search.py on a decoder whose probabilities are a table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from modelzoo.transformer.beam_search import beam_search, length_penalty, log_probabilities
from modelzoo.transformer.pairs import EOS, PAD, SOS

VOCABULARY = 6  # the four special tokens and two words
LIMIT = 4
WORDS = (1, 4, 5)  # what a translation may hold: an unknown word and two known ones


class TableDecoder:
    """Logits that depend on the sentence and on every token before, drawn from a seed."""

    def __init__(self, sentences, beams, seed):
        self._sentence = np.repeat(np.arange(sentences), beams)
        self._seed = seed
        self._rows = []

    def logits_after(self, sentence, tokens):
        return np.random.default_rng([self._seed, sentence, *tokens]).normal(0, 2, VOCABULARY)

    def start(self, prompts, **features):
        assert features == {"memory": "what the encoder says"}
        self._rows = [list(prompt) for prompt in prompts]
        return self._logits()

    def reorder(self, rows):
        assert (self._sentence[rows] == self._sentence).all(), "a beam left its sentence"
        self._rows = [list(self._rows[row]) for row in rows]

    def append(self, tokens):
        for row, token in zip(self._rows, tokens):
            row.append(int(token))
        return self._logits()

    def _logits(self):
        pairs = zip(self._sentence, self._rows)
        return np.stack([self.logits_after(sentence, row[1:]) for sentence, row in pairs])


def search(seed, sentences, beams, alpha, limit=LIMIT):
    decoder = TableDecoder(sentences, beams, seed)
    limits = [limit] * sentences
    return beam_search(decoder, limits, beams, alpha, memory="what the encoder says")


def log_prob(decoder, sentence, tokens, ends):
    """Log-probability of the tokens, and of the end after them."""
    total = 0.0
    for place, token in enumerate([*tokens, EOS] if ends else tokens):
        logits = decoder.logits_after(sentence, tokens[:place])
        total += log_probabilities(logits[None])[0, token]
    return total


def all_scores(decoder, sentence, alpha):
    """The score of every possible translation: it ends, or it has the most tokens allowed."""
    scores = {}
    for length in range(LIMIT):
        for tokens in itertools.product(WORDS, repeat=length):
            total = log_prob(decoder, sentence, list(tokens), ends=True)
            scores[tokens] = total / length_penalty(length + 1, alpha)
    for tokens in itertools.product(WORDS, repeat=LIMIT):
        total = log_prob(decoder, sentence, list(tokens), ends=False)
        scores[tokens] = total / length_penalty(LIMIT, alpha)
    return scores


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_search_with_enough_beams_finds_the_best_of_all_translations(alpha):
    beams = len(WORDS) ** LIMIT * 2
    for seed in range(4):
        found = search(seed, 2, beams, alpha)
        decoder = TableDecoder(2, beams, seed)
        for sentence, hypothesis in enumerate(found):
            scores = all_scores(decoder, sentence, alpha)
            best = max(scores, key=scores.__getitem__)
            assert tuple(hypothesis.tokens) == best
            np.testing.assert_allclose(hypothesis.score, scores[best], rtol=1e-9)


def test_one_beam_is_greedy_decoding():
    lengths = set()
    for seed in range(20):
        (found,) = search(seed, 1, 1, alpha=0.6, limit=8)
        decoder, tokens = TableDecoder(1, 1, seed), []
        while len(tokens) < 8:
            likeliest = int(log_probabilities(decoder.logits_after(0, tokens)[None]).argmax())
            if likeliest == EOS:
                break
            tokens.append(likeliest)
        assert found.tokens == tokens
        lengths.add(len(tokens))
    assert {0, 8} & lengths and len(lengths) > 3, "some end early, some at the limit"


def test_more_beams_find_no_worse_translation_than_the_greedy_one():
    better = 0
    for seed in range(20):
        greedy, wide = (search(seed, 1, beams, alpha=0.0)[0].score for beams in (1, 81))
        assert wide >= greedy - 1e-12
        better += wide > greedy + 1e-9
    assert better > 0


def test_a_sentence_is_translated_the_same_in_any_batch():
    alone, together = search(3, 1, 3, 0.6), search(3, 4, 3, 0.6)
    assert together[0] == alone[0]


def test_each_sentence_keeps_to_its_own_limit():
    decoder = TableDecoder(3, 2, seed=5)
    found = beam_search(decoder, [1, 2, 7], 2, 0.6, memory="what the encoder says")
    assert all(len(hypothesis.tokens) <= limit for hypothesis, limit in zip(found, [1, 2, 7]))


def test_no_translation_has_a_pad_or_a_start_token():
    log_probs = log_probabilities(np.full((1, VOCABULARY), 3.0, np.float32))
    assert np.isneginf(log_probs[0, [PAD, SOS]]).all()
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0)


def test_length_penalty_is_that_of_wu_et_al():
    assert length_penalty(7, 0.0) == 1.0
    assert length_penalty(1, 0.6) == 1.0
    np.testing.assert_allclose(length_penalty(13, 0.5), 3.0**0.5)
