"""Tells whether GPT-2's two files, a vocabulary and its merges, are whole and belong together."""

from __future__ import annotations

import re

from cerebras_tf.errors import ConfigError

# Tokens that stand for themselves: <s>, <|endoftext|>, [PAD], and what RoBERTa fills up with.
NOT_MERGED = re.compile(r"<.*>$|\[.*\]$|madeupword\d+$")
MOST_ADDED = 1000  # tokens without a merge at either end of a vocabulary's numbers
MOST_EARLY = 0.01  # share of merges that may stand before those that make their parts


def check_numbers(path, vocabulary):
    """Raises a ConfigError where numbers of tokens are none; some may have no token.

    Args:
        path: of the vocabulary.
        vocabulary: dict from token to number.
    """
    limit = 2 * len(vocabulary) + 1024
    of: dict[int, str] = {}
    for token, number in vocabulary.items():
        problem = f"{number!r:.60} for {token!r:.60}"
        if type(number) is int and 0 <= number <= limit:
            other = of.setdefault(number, token)
            if other == token:
                continue
            problem += f" and {other!r:.60}"
        raise ConfigError(
            f"{path}: must number its {len(vocabulary)} tokens by whole numbers, 0 to {limit}, "
            f"each number once. Received: {problem}. Copy the file again."
        )


def check_merges(path, pairs, of, vocabulary):
    """Raises a ConfigError where merges do not make the tokens of a vocabulary, each in its turn.

    Tokens would have other numbers, all of them valid, so that nothing else ever told it. The
    library's trainer may write a few pairs late.

    Args:
        path: of the merges.
        pairs: two tokens of each line.
        of: path of the vocabulary.
        vocabulary: dict from token to number.
    """
    made, early = {token for token in vocabulary if len(token) == 1}, []
    problem, advice = "", "Copy the file again."
    for pair in pairs:
        if not made.issuperset(pair):
            early.append(pair)
        made.add("".join(pair))
    lacking = _lacking(vocabulary, made)
    if len(early) > MOST_EARLY * len(pairs):
        problem = (
            f"{' '.join(early[0])!r} before a line that makes its parts, one of {len(early)} "
            f"such lines of {len(pairs)}"
        )
    elif len(set(pairs)) < len(pairs):
        problem = "a line that stands twice"
    elif lacking:
        problem = f"none that makes {lacking[0]!r}, one of {len(lacking)} such tokens"
        advice += " Write a token that was added behind those of the merges as <name> or [name]."
    if problem:
        raise ConfigError(
            f"{path}: must hold the merges that make the tokens of {of}, in their order. "
            f"Received: {problem}. {advice}"
        )


def _lacking(vocabulary, made):
    """Returns the tokens that merges should have made.

    Those before and after all made ones were added by hand, if there are not too many of them. Not
    so behind all made ones a token of two others: lines are missing at the end of the merges.
    """
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    first = next((i for i, token in enumerate(tokens) if token in made), len(tokens))
    past = next((i for i in range(len(tokens), first, -1) if tokens[i - 1] in made), first)
    before, between, behind = (
        [token for token in block if token not in made and not NOT_MERGED.match(token)]
        for block in (tokens[:first], tokens[first:past], tokens[past:])
    )
    added = min(MOST_ADDED, 16 + sum(len(token) > 1 for token in made) // 2)
    if len(behind) <= added:
        behind = [token for token in behind if _is_of_two(token, vocabulary)]
    return [*(before if len(before) > added else ()), *between, *behind]


def _is_of_two(token, vocabulary):
    return any(token[:i] in vocabulary and token[i:] in vocabulary for i in range(1, len(token)))
