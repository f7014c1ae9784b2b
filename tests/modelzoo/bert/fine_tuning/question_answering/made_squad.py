"""SQuAD files that tests make: the answer is the one good word of a paragraph."""

from __future__ import annotations

import json

import numpy as np

from tests.modelzoo.bert.fine_tuning.made_data import GOOD, PLAIN


def question(key, text, answer, start):
    return {"id": key, "question": text, "answers": [{"text": answer, "answer_start": start}]}


def articles(count, seed=0, with_negative=False):
    """Draws articles of two paragraphs with a question each.

    With `with_negative` every fourth question is about a paragraph without a good word.
    """
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        paragraphs = []
        for part in range(2):
            words = list(generator.choice(PLAIN[:8], generator.integers(4, 12)))
            place = int(generator.integers(len(words)))
            answer = str(generator.choice(GOOD)).capitalize()
            key = f"q{number}-{part}"
            if with_negative and (2 * number + part) % 4 == 3:
                asked = {"id": key, "question": "what was the film", "answers": []}
                asked["is_impossible"] = True
                context = " ".join(words)
            else:
                context = " ".join([*words[:place], answer, *words[place:]])
                start = len(" ".join([*words[:place], ""]))
                asked = question(key, "what was the film", answer, start)
            paragraphs.append({"context": context, "qas": [asked]})
        made.append({"title": f"article {number}", "paragraphs": paragraphs})
    return made


def write_squad(path, made):
    """Writes articles as SQuAD does and returns the path."""
    path.write_text(json.dumps({"version": "1.1", "data": made}), encoding="utf-8")
    return path
