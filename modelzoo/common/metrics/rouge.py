"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries).

A sentence is a list of tokens, strings or ids. Words are not stemmed. The scores equal those of the
package rouge-score.
"""

import itertools
import re
from collections import Counter
from typing import NamedTuple

from cerebras_tf.errors import DataError

WORD = re.compile(r"[a-z0-9]+")
ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class Score(NamedTuple):
    """Precision, recall and their harmonic mean, from 0 to 1."""

    precision: float
    recall: float
    f1_score: float


ROUGE_FIELDS = tuple(f"{kind}-{field}" for kind in ROUGE_TYPES for field in Score._fields)


def tokenize(text):
    """Returns the lower-case runs of ASCII letters and digits of a text: a list of str."""
    return WORD.findall(text.lower())


def ngrams(tokens, n):
    """Counts the runs of n tokens: a Counter of tuples."""
    return Counter(zip(*(tokens[start:] for start in range(n))))


def score(matches, predicted, true):
    """Makes a Score from the numbers of matches, predicted and true items."""
    precision, recall = matches / max(predicted, 1), matches / max(true, 1)
    return Score(precision, recall, 2.0 * matches / max(predicted + true, 1))


def ngram_score(prediction, reference):
    """Scores Counters of n-grams with clipped counts."""
    few, many = sorted((prediction, reference), key=len)
    matches = sum(min(count, many[gram]) for gram, count in few.items() if gram in many)
    return score(matches, sum(prediction.values()), sum(reference.values()))


def rouge_n(prediction, reference, n):
    """Scores the n-grams of two lists of tokens (Lin 2004, section 2)."""
    return ngram_score(ngrams(prediction, n), ngrams(reference, n))


def rouge_l(prediction, reference):
    """Scores the longest common subsequence of two lists of tokens (Lin 2004, section 3.1)."""
    return score(lcs_length(prediction, reference), len(prediction), len(reference))


def rouge_l_summary(prediction, reference):
    """Scores the union LCS of lists of sentences (Lin 2004, section 3.2), with clipped counts."""
    left = [Counter(itertools.chain(*side)) for side in (prediction, reference)]
    sizes = [sum(counts.values()) for counts in left]
    matches = 0
    for true in reference:
        places = set().union(*(lcs_places(true, sentence) for sentence in prediction))
        for place in sorted(places):
            if all(counts[true[place]] > 0 for counts in left):
                matches += 1
                for counts in left:
                    counts[true[place]] -= 1
    return score(matches, *sizes)


def rouge(prediction, reference):
    """Computes all the scores of one summary.

    Returns:
        A Score by name: ``rouge1``, ``rouge2``, ``rougeL`` of the sentences joined, ``rougeLsum``.
    """
    tokens, true = (list(itertools.chain(*side)) for side in (prediction, reference))
    return {
        "rouge1": rouge_n(tokens, true, 1),
        "rouge2": rouge_n(tokens, true, 2),
        "rougeL": rouge_l(tokens, true),
        "rougeLsum": rouge_l_summary(prediction, reference),
    }


def mean_rouge(predictions, references):
    """Averages the scores of a corpus.

    Args:
        predictions: texts with a sentence on each line. As in rouge-score, only LF ends a line.

    Returns:
        Percentages by name: ``rouge1-precision``, ``rouge1-recall``, ``rouge1-f1_score`` and so on.

    Raises:
        DataError: if the two differ in number, or there are none.
    """
    if len(predictions) != len(references) or not references:
        raise DataError(
            f"mean_rouge: every summary must have one reference. Received: {len(predictions)} "
            f"summaries, {len(references)} references. Pass as many of each."
        )
    sums: dict[str, float] = dict.fromkeys(ROUGE_FIELDS, 0.0)
    for texts in zip(predictions, references):
        scores = rouge(*([tokenize(line) for line in text.split("\n")] for text in texts))
        for name, value in zip(ROUGE_FIELDS, itertools.chain(*scores.values())):
            sums[name] += 100.0 * value / len(references)
    return sums


def lcs_length(a, b):
    """Returns the length of the longest common subsequence of two lists.

    Bit-parallel (Hyyro 2004, Bit-parallel LCS-length computation revisited, figure 2).
    """
    places: dict = {}
    for place, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << place
    row = full = (1 << len(a)) - 1
    for token in b:
        common = row & places.get(token, 0)
        row = (row + common | row - common) & full
    return len(a) - bin(row).count("1")


def lcs_places(a, b):
    """Returns the indices in `a` of a longest common subsequence with `b`, a set.

    Of several ones it is the last, which backtracking in the dynamic program finds if it prefers to
    drop the last token of `a`.
    """
    lengths = [[0] * (len(b) + 1)]
    for token in a:
        row = [0]
        for place, other in enumerate(b):
            if token == other:
                row.append(lengths[-1][place] + 1)
            else:
                row.append(max(row[place], lengths[-1][place + 1]))
        lengths.append(row)
    places, i, j = set(), len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            places.add(i)
        elif lengths[i][j - 1] > lengths[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return places
