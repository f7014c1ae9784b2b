"""The same classification scores as in classification.py, in NumPy, for predictions on disk.

N examples, C classes.
"""

from __future__ import annotations

import numpy as np


def confusion_counts(labels, predictions, num_classes):
    """Counts every pair of label and prediction.

    Args:
        labels: [N] integers from 0 to C - 1, or bool of two classes.
        predictions: [N] integers of the same range.
        num_classes: C.

    Returns:
        [C, C] int64: rows are labels, columns predictions.
    """
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (np.asarray(labels, np.int64), np.asarray(predictions, np.int64)), 1)
    return counts


def f1_scores(counts):
    """Computes every class's F1, 2 TP / (2 TP + FP + FN) (van Rijsbergen 1979, chapter 7).

    Args:
        counts: [C, C] integers of `confusion_counts`.

    Returns:
        [C] float64, 0 for a class that is neither among the labels nor the predictions.
    """
    counts = np.asarray(counts, np.float64)
    sizes = counts.sum(axis=0) + counts.sum(axis=1)
    return 2.0 * np.diag(counts) / np.where(sizes > 0, sizes, 1.0)


def matthews_correlation(counts):
    """Computes Matthews correlation (Matthews 1975, equation 1).

    Args:
        counts: [2, 2] integers of `confusion_counts`.

    Returns:
        A number from -1 to 1, 0 where all labels or all predictions are alike.
    """
    counts = np.asarray(counts, np.float64)
    norm = np.sqrt(counts.sum(axis=0)).prod() * np.sqrt(counts.sum(axis=1)).prod()
    determinant = counts[0, 0] * counts[1, 1] - counts[0, 1] * counts[1, 0]
    return float(determinant / norm) if norm > 0 else 0.0
