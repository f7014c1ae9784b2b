"""The plain kernel of the CTC loss: forward and backward variables in float64.

Letters: T steps, B sequences, C classes, U states: the labels of a sequence with blanks between,
before and after them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.errors import DataError
from cerebras_tf.kernels.registry import plain


def _padded(indices: np.ndarray, values: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels [B, L], and their number in each sequence [B]."""
    rows = indices[:, 0]
    counts = np.bincount(rows, minlength=batch)
    labels = np.zeros((batch, int(np.max(counts, initial=0))), np.int64)
    places = np.arange(rows.size) - np.searchsorted(rows, rows)
    labels[rows, places] = values
    return labels, counts


def _check(values: np.ndarray, counts: np.ndarray, lengths: np.ndarray, classes: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= classes - 1):
        raise DataError(
            f"ctc_loss: labels must lie in [0, {classes - 1}), the last class is the blank. "
            f"Received: {values.min()} to {values.max()}. Correct the labels or add a class."
        )
    late = np.flatnonzero(counts > lengths)
    if late.size:
        at = int(late[0])
        raise DataError(
            f"ctc_loss: a sequence must have at least as many steps as labels. Received: "
            f"{lengths[at]} steps and {counts[at]} labels of sequence {at}. Set "
            "ignore_longer_outputs_than_inputs, or leave such sequences out."
        )


def _add_logs(*terms: np.ndarray) -> np.ndarray:
    total = terms[0]
    for term in terms[1:]:
        total = np.logaddexp(total, term)
    return total


def _shifted(x: np.ndarray, by: int) -> np.ndarray:
    """x [B, U] with state u - by at u, and log 0 where there is none."""
    result = np.full_like(x, -np.inf)
    if by > 0:
        result[:, by:] = x[:, :-by]
    else:
        result[:, :by] = x[:, -by:]
    return result


def _occupancy(both: np.ndarray, final: np.ndarray, states: np.ndarray, classes: int) -> np.ndarray:
    """[T,B,C]: how probable each class is at a step, given the labels.

    Args:
        both: log probabilities of the states and the labels [T,B,U].
        final: log probabilities of the labels [B].
        states: classes of the states [B,U].
        classes: their number.
    """
    result = np.zeros((*both.shape[:2], classes))
    shares = np.exp(both - np.where(np.isfinite(final), final, 0.0)[:, None])
    rows = np.arange(both.shape[1])
    for u in range(states.shape[1]):
        at: Any = (slice(None), rows, states[:, u])
        np.add.at(result, at, np.nan_to_num(shares[:, :, u]))
    return result


@plain("ctc_loss")
def ctc_loss(logits, indices, values, lengths, *, merge, skip_long):
    """The loss of each sequence, and its gradient (Graves, 2012, equations 7.9, 7.15 and 7.34).

    Without merge, a label that is repeated from step to step counts as several.
    """
    steps, batch, classes = logits.shape
    labels, counts = _padded(indices, values, batch)
    long = counts > lengths
    if skip_long:
        counts = np.where(long, 0, counts)
    _check(values, counts, lengths, classes)
    blank = classes - 1
    states = np.full((batch, 2 * labels.shape[1] + 1), blank)
    states[:, 1::2] = labels
    numbers = np.arange(states.shape[1])
    valid = numbers < (2 * counts + 1)[:, None]
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=2, keepdims=True)
    log_y = wide - np.log(np.exp(wide).sum(axis=2, keepdims=True))
    heard = log_y[:, np.arange(batch)[:, None], states]  # [T, B, U]
    is_label = states != blank
    stays = np.where(is_label, merge, True)
    skips = is_label & (numbers > 1)
    if merge:
        skips[:, 2:] &= states[:, 2:] != states[:, :-2]
    no_stay, no_skip = (np.where(allowed, 0.0, -np.inf) for allowed in (stays, skips))
    outside = np.where(valid, 0.0, -np.inf)

    forward = np.full(heard.shape, -np.inf)
    if steps:
        forward[0] = np.where(numbers < 2, heard[0], -np.inf) + outside
    for t in range(1, steps):
        before = forward[t - 1]
        forward[t] = heard[t] + outside
        forward[t] += _add_logs(
            before + no_stay, _shifted(before, 1), _shifted(before, 2) + no_skip
        )
    ends = np.where(
        (numbers == (2 * counts)[:, None]) | (numbers == (2 * counts - 1)[:, None]), 0.0, -np.inf
    )
    backward = np.full(heard.shape, -np.inf)
    after = np.full(states.shape, -np.inf)
    for t in range(steps - 1, -1, -1):
        ahead = np.full(states.shape, -np.inf)
        if t + 1 < steps:
            after = backward[t + 1] + heard[t + 1]
            ahead = _add_logs(after + no_stay, _shifted(after, -1), _shifted(after + no_skip, -2))
        last = (lengths - 1 == t)[:, None]
        backward[t] = np.where(last, ends, np.where((lengths - 1 > t)[:, None], ahead, -np.inf))
    both = forward + backward
    final = _add_logs(*both[0].T) if steps else np.zeros(batch)
    used = (lengths > 0) & ~(long & skip_long)
    inside = (np.arange(steps)[:, None] < lengths) & used
    occupancy = _occupancy(both, final, states, classes)
    gradient = np.where(inside[:, :, None], np.exp(log_y) - occupancy, 0.0)
    return np.where(used, -final, 0.0).astype(logits.dtype), gradient.astype(logits.dtype)
