"""Articles that tests make: the sentences with two good words are the summary."""

from __future__ import annotations

import json

import numpy as np

from tests.modelzoo.bert.fine_tuning.made_data import GOOD, PLAIN


def article(generator):
    """Draws 4 to 7 sentences, one a paragraph, and those with good words."""
    sentences, highlights = [], []
    count = int(generator.integers(4, 8))
    chosen = set(generator.permutation(count)[:2].tolist())
    for number in range(count):
        words = list(generator.choice(PLAIN[:8], generator.integers(4, 7)))
        if number in chosen:
            words[1:1] = list(generator.choice(GOOD, 2, replace=False))
        sentences.append(" ".join(words).capitalize() + ".")
        highlights += [sentences[-1]] if number in chosen else []
    return sentences, highlights


def rows(count, seed=0):
    """Draws rows in the form of CNN/DailyMail."""
    generator = np.random.default_rng(seed)
    drawn = (article(generator) for _ in range(count))
    return [
        {"id": str(number), "article": "\n".join(sentences), "highlights": "\n".join(highlights)}
        for number, (sentences, highlights) in enumerate(drawn)
    ]


def write_jsonl(path, made):
    """Writes one row a line and returns the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return path


def write_story(path, row):
    """Writes a row as a .story file and returns the path."""
    marks = "".join(f"@highlight\n\n{line}\n\n" for line in row["highlights"].split("\n"))
    body = row["article"].replace("\n", "\n\n")
    path.write_text(f"{body}\n\n{marks}", encoding="utf-8")
    return path
