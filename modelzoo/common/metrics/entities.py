"""Counts named entities in tagged sentences by the rules of CoNLL.

A sentence is a list of tags: ``O``, or a letter with or without a type after a hyphen, in one of
the schemes IOB1, IOB2 (``B``, ``I``), IOBES (also ``E``, ``S``), BMES and BILOU. Other tags count
as ``O``.
"""

import numpy as np

CONTINUING = ("I", "M", "E", "L")  # within an entity
LAST = ("E", "L", "S", "U")  # the last token of an entity, or its only one


def entity_spans(tags):
    """Finds the entities of a sentence, as the CoNLL-2000 shared task counts chunks.

    An entity starts at ``B``, ``S`` or ``U``, and at a tag of CONTINUING that does not continue an
    entity of its type. It ends at a tag of LAST, and before the next entity or ``O`` (Tjong Kim
    Sang and Buchholz 2000, and their conlleval).

    Returns:
        A set of (first, last + 1, type).
    """
    spans, start, kind, previous = set(), None, None, "O"
    for place, tag in enumerate([*tags, "O"]):
        head, _, tail = tag.partition("-")
        continues = head in CONTINUING and previous not in LAST and tail == kind
        if start is not None and not continues:
            spans.add((start, place, kind))
            start = None
        if start is None and head in ("B", *CONTINUING, *LAST):
            start, kind = place, tail
        previous = head
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
