"""Selects the sentences of summaries, and finds their tokens in the model's input.

B batch, S sequence length, C sentences, H tokens of true summaries.
"""

from collections import Counter

import numpy as np

from modelzoo.common.metrics.rouge import ngram_score, ngrams, tokenize

THRESHOLD = 0.5


def select(probabilities, count, top_k=None):
    """Selects sentences.

    Args:
        probabilities: [C] floats.
        count: number of sentences; further probabilities are ignored.
        top_k: number of sentences to select, the likeliest ones. None selects all with a
            probability of at least THRESHOLD, or the likeliest if there is none.

    Returns:
        Ascending indices of sentences.
    """
    probabilities = np.asarray(probabilities)[:count]
    order = np.argsort(-probabilities, kind="stable")
    if top_k is None:
        top_k = max(1, int((probabilities >= THRESHOLD).sum()))
    return sorted(order[:top_k].tolist())


def summaries(ids, indices, weights, labels, probabilities, highlights=None, *, sep_id, top_k):
    """Returns the selected sentences of a batch and the true summaries, as tokens.

    Args:
        ids: [B, S] integers.
        indices: [B, C], the position of each sentence's [CLS].
        weights: [B, C], above 0 for a sentence.
        labels: [B, C], 1 for a sentence of the summary.
        probabilities: [B, C] floats.
        highlights: [B, H], the true summaries, `sep_id` after each sentence. None takes the
            labelled sentences instead.
        sep_id: id of [SEP].

    Returns:
        A pair (prediction, reference) for each example, each a list of lists of int.
    """
    pairs = []
    for row, tokens in enumerate(np.asarray(ids)):
        count = int((np.asarray(weights[row]) > 0).sum())
        places = np.asarray(indices[row])
        picked = select(probabilities[row], count, top_k)
        predicted = [_sentence(tokens, places[place], sep_id) for place in picked]
        if highlights is None:
            true = np.flatnonzero(np.asarray(labels[row])[:count])
            reference = [_sentence(tokens, places[place], sep_id) for place in true]
        else:
            reference = _split(np.asarray(highlights[row]).tolist(), sep_id)
        pairs.append((predicted, reference))
    return pairs


def _sentence(tokens, place, sep_id):
    """Returns the tokens between the [CLS] at `place` and the next [SEP]."""
    rest = tokens[place + 1 :]
    ends = np.flatnonzero(rest == sep_id)
    return rest[: ends[0] if len(ends) else len(rest)].tolist()


def _split(tokens, sep_id):
    sentences, begin = [], 0
    for place, token in enumerate(tokens):
        if token == sep_id:
            sentences.append(tokens[begin:place])
            begin = place + 1
    return sentences


SUMMARY_SENTENCES = 3


def greedy_oracle(sentences, highlights, count=SUMMARY_SENTENCES):
    """Greedily adds the sentence that increases ROUGE-1 plus ROUGE-2 most, until none does.

    Both are F1. N-grams do not cross sentences. Of equal sentences the first is taken.

    Returns:
        Ascending indices of sentences, none if no sentence has a word of the summary.
    """
    candidates = [_grams([sentence]) for sentence in sentences]
    reference = _grams(highlights)
    picked: list[int] = []
    chosen: list[Counter] = [Counter(), Counter()]
    best = 0.0
    while len(picked) < count:
        scores = {
            place: _score(chosen, grams, reference)
            for place, grams in enumerate(candidates)
            if place not in picked
        }
        place = max(scores, key=scores.__getitem__, default=None)
        if place is None or scores[place] <= best:
            break
        best = scores[place]
        picked.append(place)
        chosen = [mine + more for mine, more in zip(chosen, candidates[place])]
    return sorted(picked)


def _grams(sentences):
    """Counts words and pairs of words."""
    words = [tokenize(sentence) for sentence in sentences]
    return tuple(sum((ngrams(line, n) for line in words), Counter()) for n in (1, 2))


def _score(chosen, more, reference):
    return sum(
        ngram_score(mine + added, true).f1_score
        for mine, added, true in zip(chosen, more, reference)
    )
