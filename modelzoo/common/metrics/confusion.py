"""Scores of classes from counts of labels and predictions, in NumPy. C is the number of classes."""

import numpy as np


def count_pairs(labels, predictions, classes):
    """Counts pairs of label and prediction: [C, C] int64, rows are labels.

    Args:
        labels, predictions: integers below `classes`, of one shape.
    """
    pairs = np.asarray(labels).ravel() * classes + np.asarray(predictions).ravel()
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def f1_of_class(counts):
    """Returns every class's F1, 2 TP / (2 TP + FP + FN), 0 for a class that does not occur: [C].

    Source: van Rijsbergen 1979, chapter 7.
    """
    sizes = counts.sum(axis=0) + counts.sum(axis=1)
    return 2.0 * np.diag(counts) / np.maximum(sizes, 1)


def f1_of_classes(counts, chosen):
    """Returns the macro and the micro F1 of some classes.

    Args:
        chosen: numbers of classes.
    """
    hits, sizes = np.diag(counts)[chosen], (counts.sum(axis=0) + counts.sum(axis=1))[chosen]
    return f1_of_class(counts)[chosen].mean(), 2.0 * hits.sum() / max(sizes.sum(), 1)


def matthews(counts):
    """Returns Matthews correlation of two classes (Matthews 1975, equation 1).

    It is 0 if all labels or all predictions are equal.
    """
    counts = counts.astype(np.float64)
    norm = np.prod(np.sqrt([*counts.sum(axis=0), *counts.sum(axis=1)]))
    return (counts[0, 0] * counts[1, 1] - counts[0, 1] * counts[1, 0]) / norm if norm else 0.0
