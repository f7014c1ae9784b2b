"""Counts named entities in tagged sentences by the rules of CoNLL.

A sentence is a list of tags: ``O``, or ``B`` or ``I`` with or without a type after a hyphen. Other
tags count as ``O``.
"""

import numpy as np


def entity_spans(tags):
    """Finds the entities of a sentence, as the CoNLL-2000 shared task counts chunks.

    An entity starts at a ``B``, and at an ``I`` that does not continue an entity of its type. It
    ends before the next entity or ``O`` (Tjong Kim Sang and Buchholz 2000, and their conlleval).

    Returns:
        A set of (first, last + 1, type).
    """
    spans, start, kind = set(), None, None
    for place, tag in enumerate([*tags, "O"]):
        head, _, tail = tag.partition("-")
        if start is not None and not (head == "I" and tail == kind):
            spans.add((start, place, kind))
            start = None
        if start is None and head in ("B", "I"):
            start, kind = place, tail
    return spans


def entity_counts(labels, predictions):
    """Counts the entities of a sentence: true positives, predicted and true ones.

    Args:
        predictions: as many.

    Returns:
        [3] int64: entities with equal span and type, predicted ones, true ones.
    """
    true, predicted = entity_spans(labels), entity_spans(predictions)
    return np.array([len(true & predicted), len(predicted), len(true)], np.int64)
