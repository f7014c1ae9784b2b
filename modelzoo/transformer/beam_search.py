"""Beam search over the logits of a decoder.

Shapes: B sentences, K beams, V vocabulary.
"""

from typing import NamedTuple

import numpy as np

from modelzoo.transformer.pairs import EOS, PAD, SOS


class Hypothesis(NamedTuple):
    """A translation: its tokens without the end token, and its score."""

    tokens: list
    score: float


def length_penalty(length, alpha):
    """((5 + length) / 6) ^ alpha, by which a log-probability is divided (Wu et al. 2016, eq. 14).

    Args:
        alpha: 0 has no effect; larger values favour longer translations.
    """
    return ((5.0 + length) / 6.0) ** alpha


def beam_search(decoder, limits, beam_size, alpha, **features):
    """Translates a batch of sentences.

    A hypothesis ends if its end token is among the K likeliest continuations of its sentence, or if
    it reaches the limit. The search ends when K hypotheses have ended, or when no other one can
    become better than the best of them. With one beam it is greedy decoding.

    Args:
        limits: [B] maximum number of tokens of each translation, with the end token.

    Returns:
        The best Hypothesis of each sentence.
    """
    beams = Beams(limits, beam_size, alpha)
    logits = decoder.start([[SOS]] * (len(limits) * beam_size), **features)
    while True:
        rows, tokens = beams.advance(log_probabilities(logits))
        if all(beams.is_done):
            return beams.best()
        decoder.reorder(rows)
        logits = decoder.append(tokens)


def log_probabilities(logits):
    """Returns the log softmax of logits [R, V] without pad and start tokens, float64."""
    wide = logits.astype(np.float64)
    wide[:, [PAD, SOS]] = -np.inf
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


class Beams:
    """The hypotheses of a batch.

    Args:
        limits: [B] maximum number of tokens of each translation.

    Attributes:
        is_done: list of B bool, whether the search for a sentence has ended.
    """

    def __init__(self, limits, beam_size, alpha):
        self.is_done = [False] * len(limits)
        self._limits = limits
        self._alpha = alpha
        self._size = beam_size
        self._totals = np.full((len(limits), beam_size), -np.inf)
        self._totals[:, 0] = 0.0  # at the start the beams of a sentence are equal
        self._tokens: list[list[list[int]]] = [[[] for _ in range(beam_size)] for _ in limits]
        self._ended: list[list[Hypothesis]] = [[] for _ in limits]

    def advance(self, log_probs):
        """Extends each hypothesis by a token.

        Args:
            log_probs: [B * K, V] float64, of the next token after each hypothesis.

        Returns:
            For each of the B * K new hypotheses the row of the old one, and its token.
        """
        count, size = self._totals.shape
        vocabulary = log_probs.shape[1]
        totals = self._totals.reshape(-1, 1) + log_probs
        totals = totals.reshape(count, size * vocabulary)
        best = largest(totals, 2 * size)  # at most K of them are end tokens
        rows = np.arange(count * size).reshape(count, size)
        tokens = np.full((count, size), EOS, np.int32)
        for sentence in range(count):
            if self.is_done[sentence]:
                continue
            kept = self._divide(sentence, best[sentence], totals[sentence], vocabulary)
            self._totals[sentence] = -np.inf
            before = self._tokens[sentence]
            for place, (beam, token, total) in enumerate(kept):
                rows[sentence, place] = sentence * size + beam
                tokens[sentence, place] = token
                self._totals[sentence, place] = total
            new = [[*before[beam], token] for beam, token, _ in kept]
            self._tokens[sentence] = new + [[]] * (size - len(kept))
            self._end(sentence, len(kept))
        return rows.reshape(-1), tokens.reshape(-1)

    def best(self):
        """Returns the best ended hypothesis of each sentence."""
        return [max(ended, key=lambda hypothesis: hypothesis.score) for ended in self._ended]

    def _divide(self, sentence, candidates, totals, vocabulary):
        """Stores the candidates that end, and returns (beam, token, total) of K that do not."""
        kept: list[tuple[int, int, float]] = []
        for rank, index in enumerate(candidates):
            beam, token = divmod(int(index), vocabulary)
            if totals[index] == -np.inf or len(kept) == self._size:
                break
            if token != EOS:
                kept.append((beam, token, totals[index]))
            elif rank < self._size:
                tokens = self._tokens[sentence][beam]
                self._ended[sentence].append(self._scored(tokens, len(tokens) + 1, totals[index]))
        return kept

    def _end(self, sentence, count):
        """Ends the search for a sentence if it is complete. `count` hypotheses have not ended."""
        limit, ended = self._limits[sentence], self._ended[sentence]
        alive = list(zip(self._tokens[sentence], self._totals[sentence]))[:count]
        if alive and len(alive[0][0]) >= limit:
            ended += [self._scored(tokens, len(tokens), total) for tokens, total in alive]
            alive = []
        # Totals only decrease, and the divisor is largest at the limit.
        bound = max(
            (total / length_penalty(limit, self._alpha) for _, total in alive), default=None
        )
        self.is_done[sentence] = bool(ended) and (
            bound is None
            or len(ended) >= self._size
            or bound <= max(hypothesis.score for hypothesis in ended)
        )

    def _scored(self, tokens, length, total):
        return Hypothesis(tokens, float(total) / length_penalty(length, self._alpha))


def largest(values, count):
    """Returns the indices of the largest `count` values of each row, the largest first."""
    count = min(count, values.shape[1])
    some = np.argpartition(-values, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)
