"""Tests of modelzoo/common/metrics/entities.py."""

from __future__ import annotations

import random

import pytest

from modelzoo.common.metrics.entities import entity_counts, entity_spans


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("", set()),
        ("O O", set()),
        ("B I I O", {(0, 3, "")}),
        ("B B I", {(0, 1, ""), (1, 3, "")}),
        ("O B I", {(1, 3, "")}),
        # An I without a beginning starts an entity, as does one of another type.
        ("I I O I", {(0, 2, ""), (3, 4, "")}),
        ("B-PER I-LOC I-LOC", {(0, 1, "PER"), (1, 3, "LOC")}),
        ("B-PER I-PER B-PER", {(0, 2, "PER"), (2, 3, "PER")}),
        # Whatever is neither ends it.
        ("B X I", {(0, 1, ""), (2, 3, "")}),
        ("[CLS] B-GPE [SEP]", {(1, 2, "GPE")}),
    ],
)
def test_entity_spans_are_chunks_as_conll_counts_them(tags, spans):
    assert entity_spans(tags.split()) == spans


def test_tags_written_from_spans_give_the_spans_back():
    generator = random.Random(0)
    for _ in range(200):
        tags, spans = [], set()
        while len(tags) < 20:
            kind, length = generator.choice(["", "A", "B"]), generator.randint(1, 3)
            if generator.random() < 0.5:
                tags += ["O"] * length
            else:
                spans.add((len(tags), len(tags) + length, kind))
                end = f"-{kind}" if kind else ""
                tags += [f"B{end}"] + [f"I{end}"] * (length - 1)
        assert entity_spans(tags) == spans


def test_an_entity_is_found_only_with_its_place_and_its_type():
    true = ["B-A", "I-A", "O", "B-B", "O", "B-A"]
    predicted = ["B-A", "O", "O", "B-A", "O", "B-A"]
    assert entity_counts(true, predicted).tolist() == [1, 3, 3]
    assert entity_counts(true, true).tolist() == [3, 3, 3]
    assert entity_counts(true, ["O"] * 6).tolist() == [0, 0, 3]
