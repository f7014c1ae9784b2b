"""Makes pairs of segments for next sentence prediction.

Source: Devlin et al., BERT (2018), section 3.1 and appendix A.2.
"""

import numpy as np


def sentence_pairs(documents, index, draw_target, generator):
    """Makes the pairs of one document.

    Sentences are collected until they fill a record, and a random number of them is the first
    segment. With probability 0.5, or if there is only one sentence, the second segment comes from a
    random other document, and the sentences that it replaces are used again.

    Args:
        documents: at least two lists of sentences, each [n] integers, n >= 1.

    Yields:
        The two segments [n] integers, and whether the second is a random one.
    """
    document = documents[index]
    position = 0
    while position < len(document):
        target = draw_target()
        end, size = position, 0
        while end < len(document) and size < target:
            size += len(document[end])
            end += 1
        count = end - position
        split = int(generator.integers(1, count)) if count > 1 else 1
        first = np.concatenate(document[position : position + split])
        is_random = count == 1 or generator.random() < 0.5
        if is_random:
            second = _random_segment(documents, index, max(target - len(first), 1), generator)
            position += split
        else:
            second = np.concatenate(document[position + split : end])
            position = end
        yield first, second, is_random


def _random_segment(documents, index, wanted, generator):
    other = int(generator.integers(len(documents) - 1))
    document = documents[other + (other >= index)]
    start = int(generator.integers(len(document)))
    parts, size = [], 0
    for sentence in document[start:]:
        parts.append(sentence)
        size += len(sentence)
        if size >= wanted:
            break
    return np.concatenate(parts)


def truncate_pair(first, second, limit, generator):
    """Removes tokens from the longer segment, randomly at its front or its back.

    Args:
        first: [n] integers, at least one.
        second: [m] integers, at least one.
        limit: maximum of n + m afterwards, at least 2.

    Returns:
        The two, each with at least one token.
    """
    excess = len(first) + len(second) - limit
    if excess <= 0:
        return first, second
    # The longer one is truncated until both are equal, then both alternately, the second first.
    from_first = min(excess, max(0, len(first) - len(second)))
    from_second = min(excess, max(0, len(second) - len(first)))
    rest = excess - from_first - from_second
    from_first += rest // 2
    from_second += rest - rest // 2
    return _cut(first, from_first, generator), _cut(second, from_second, generator)


def _cut(segment, count, generator):
    front = int(generator.binomial(count, 0.5))
    return segment[front : len(segment) - (count - front)]
