"""Selects the sentences of summaries, and finds their tokens in the model's input.

B batch, S sequence length, C sentences, H tokens of true summaries.
"""

import numpy as np

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
