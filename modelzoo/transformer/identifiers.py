"""A translation task that needs no download: names in snake_case and the same in CamelCase.

The names are the first two words of the lines of the text that comes with the package.
"""

from __future__ import annotations

import re
import zlib

from modelzoo.common.data.text_files import find_text_files

WORD = re.compile(rb"[a-z]+")
WORDS_OF_A_NAME = 2
SPLIT_BUCKETS = 10_000


def identifier_pairs(eval_fraction, training):
    """Finds the names of one split; the split of a name depends on nothing but the name.

    Args:
        eval_fraction: share of the names kept for evaluation.
        training: which split.

    Returns:
        Two lists of str, in alphabetical order: ``snake_case`` and ``CamelCase``.
    """
    found: set[bytes] = set()
    for _, path in find_text_files(None, []):
        with open(path, "rb") as file:
            for line in file:
                words = WORD.findall(line.lower().replace(b"'", b""))[:WORDS_OF_A_NAME]
                if len(words) == WORDS_OF_A_NAME:
                    found.add(b"_".join(words))
    limit = eval_fraction * SPLIT_BUCKETS
    names = [
        name.decode("ascii")
        for name in sorted(found)
        if (zlib.crc32(name) % SPLIT_BUCKETS >= limit) == training
    ]
    return names, ["".join(part.capitalize() for part in name.split("_")) for name in names]
