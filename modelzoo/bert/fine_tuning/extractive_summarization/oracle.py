"""Selects sentences by comparison with the true summary: labels for training, and an upper bound.

Source: Nallapati et al., SummaRuNNer (2017), section 3, as used by Liu, Fine-tune BERT for
Extractive Summarization (2019), section 3.1. Words are those of ROUGE, not tokens of a model.
"""

from collections import Counter

from modelzoo.common.metrics.rouge import ngram_score, ngrams, tokenize

SUMMARY_SENTENCES = 3


def greedy_oracle(sentences, highlights, count=SUMMARY_SENTENCES):
    """Greedily adds the sentence that increases ROUGE-1 plus ROUGE-2 most, until none does.

    Both are F1. N-grams do not cross sentences. Of equal sentences the first is taken.

    Args:
        count: sentences to select, at most.

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
