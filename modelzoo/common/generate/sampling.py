"""Chooses the next token from logits: the likeliest, or one drawn.

V vocabulary.
"""

from __future__ import annotations

import numpy as np


def log_softmax(logits):
    """Returns log-probabilities of logits along the last axis, float64."""
    shifted = np.asarray(logits, np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def keep_top_k(logits, k):
    """Sets all but the `k` largest of the logits [V] to -inf; equals of the smallest stay."""
    if k >= len(logits):
        return logits
    smallest = np.partition(logits, -k)[-k]
    return np.where(logits < smallest, -np.inf, logits)


def keep_top_p(logits, p):
    """Keeps the nucleus: the fewest likeliest tokens whose probabilities make up `p`.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration (2020), section 3.1.

    Args:
        logits: [V].
        p: above 0; 1 keeps all.

    Returns:
        [V], -inf outside the nucleus.
    """
    if p >= 1:
        return logits
    order = np.argsort(-logits, kind="stable")
    total = np.cumsum(np.exp(log_softmax(logits[order])))
    outside = order[1:][total[:-1] >= p]
    kept = np.array(logits)
    kept[outside] = -np.inf
    return kept


def penalize(logits, tokens, penalty):
    """Makes tokens less likely that were there before.

    Source: Keskar et al., CTRL (2019), section 4.1, which divides their logits; here those below
    zero are multiplied, as in Hugging Face, since dividing would make them likelier.

    Args:
        logits: [V].
        tokens: those that were there, integers below V.
        penalty: above 0; 1 changes nothing.

    Returns:
        [V].
    """
    changed = np.array(logits)
    there = np.unique(np.asarray(tokens, np.int64))
    values = changed[there]
    changed[there] = np.where(values < 0, values * penalty, values / penalty)
    return changed


class Sampler:
    """Chooses the tokens of one completion.

    Every completion draws from its own generator, so what it becomes does not depend on which
    others it is batched with.

    Args:
        temperature: the logits are divided by it; 0 takes the likeliest token.
        top_k: draw from this many likeliest tokens; None from all.
        top_p: draw from the nucleus of this probability; 1 from all.
        seed: whole numbers that seed the generator.
        repetition_penalty: see `penalize`; before temperature and filters.
    """

    def __init__(self, temperature=0.0, top_k=None, top_p=1.0, seed=(0,), repetition_penalty=1.0):
        self._temperature = temperature
        self._top_k = top_k
        self._top_p = top_p
        self._generator = np.random.default_rng(seed)
        self._repetition_penalty = repetition_penalty

    def choose(self, logits, before=()):
        """Chooses a token.

        Args:
            logits: [V] float32.
            before: sequences of the tokens that were there, of prompt and completion.

        Returns:
            The token, and its log-probability under the model itself: of these logits, before
            penalty, temperature and filters.
        """
        logits = np.asarray(logits, np.float64)
        weighed = logits
        if self._repetition_penalty != 1:
            weighed = penalize(logits, np.concatenate([[], *before]), self._repetition_penalty)
        token = self._draw(weighed) if self._temperature and self._top_k != 1 else weighed.argmax()
        return int(token), float(log_softmax(logits)[token])

    def _draw(self, logits):
        scaled = logits / self._temperature
        if self._top_k is not None:
            scaled = keep_top_k(scaled, self._top_k)
        total = np.cumsum(np.exp(log_softmax(keep_top_p(scaled, self._top_p))))
        # The last sum is 1 but for rounding; a draw is below 1.
        return np.searchsorted(total, self._generator.random() * total[-1], side="right")
