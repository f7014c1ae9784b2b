"""Samples the next token from logits [V], V the size of the vocabulary."""

import numpy as np


def log_softmax(logits):
    """Returns log-probabilities of logits along the last axis, float64."""
    shifted = np.asarray(logits, np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def filter_top_k(logits, k):
    """Sets all but the `k` largest logits to -inf. Ties with the smallest of them are kept."""
    if k >= len(logits):
        return logits
    smallest = np.partition(logits, -k)[-k]
    return np.where(logits < smallest, -np.inf, logits)


def filter_top_p(logits, p):
    """Sets all logits outside the nucleus to -inf.

    The nucleus is the smallest set of likeliest tokens with a total probability of at least `p`.
    Source: Holtzman et al., The Curious Case of Neural Text Degeneration (2020), section 3.1.
    """
    if p >= 1:
        return logits
    order = np.argsort(-logits, kind="stable")
    total = np.cumsum(np.exp(log_softmax(logits[order])))
    outside = order[1:][total[:-1] >= p]
    kept = np.array(logits)
    kept[outside] = -np.inf
    return kept


def penalize_repetition(logits, tokens, penalty):
    """Divides the logits of earlier tokens by `penalty`.

    Source: Keskar et al., CTRL (2019), section 4.1. Negative logits are multiplied instead, as in
    Hugging Face transformers, because dividing them would make the tokens likelier.

    Args:
        logits: [V].
        penalty: above 0; 1 has no effect.
    """
    changed = np.array(logits)
    seen = np.unique(np.asarray(tokens, np.int64))
    values = changed[seen]
    changed[seen] = np.where(values < 0, values * penalty, values / penalty)
    return changed


class Sampler:
    """Samples the tokens of one completion.

    Every completion has its own random generator, so that it does not depend on the other rows of
    its batch.

    Args:
        temperature: divisor of the logits; 0 is greedy decoding.
        top_k: number of likeliest tokens to sample from, None for all.
        repetition_penalty: see `penalize_repetition`; applied before temperature and filters.
    """

    def __init__(self, temperature=0.0, top_k=None, top_p=1.0, seed=(0,), repetition_penalty=1.0):
        self._temperature = temperature
        self._top_k = top_k
        self._top_p = top_p
        self._generator = np.random.default_rng(seed)
        self._repetition_penalty = repetition_penalty

    def choose(self, logits, before=()):
        """Samples a token.

        Args:
            logits: [V] float32.

        Returns:
            The token, and its log-probability before penalty, temperature and filters.
        """
        logits = np.asarray(logits, np.float64)
        penalized = logits
        if self._repetition_penalty != 1:
            penalized = penalize_repetition(
                logits, np.concatenate([[], *before]), self._repetition_penalty
            )
        token = (
            self._sample(penalized)
            if self._temperature and self._top_k != 1
            else penalized.argmax()
        )
        return int(token), float(log_softmax(logits)[token])

    def _sample(self, logits):
        scaled = logits / self._temperature
        if self._top_k is not None:
            scaled = filter_top_k(scaled, self._top_k)
        total = np.cumsum(np.exp(log_softmax(filter_top_p(scaled, self._top_p))))
        # The last sum differs from 1 by rounding.
        return np.searchsorted(total, self._generator.random() * total[-1], side="right")
