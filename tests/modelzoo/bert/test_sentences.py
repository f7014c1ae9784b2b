"""Tests of modelzoo/bert/sentences.py: where sentences and documents end."""

from __future__ import annotations

import re
import sys
import types

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.bert import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rains. We stay in! Do we? Yes.", ["It rains.", "We stay in!", "Do we?", "Yes."]),
        ("Mr. Smith met Dr. J. Doe in the U.S. Army. He left.", 2),
        ('"Stop." He did. (Twice.) "Go!" she said.', 4),
        ("It costs 3.50 dollars, e.g. at No. 5 there. 1999 was cheaper.", 2),
        ("It was . Then it is . 3 of them", ["It was .", "Then it is .", "3 of them"]),
        ("Über alles. Élan vital. οὐ γάρ. Ἀλλά.", 4),
        ("A heading\n\nA line. And a second", ["A heading", "A line.", "And a second"]),
        ("one sentence. goes on in lower case.", 1),
        (" \n\t\n", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text, expected):
    found = sentences.split_sentences(text)
    assert found == expected if isinstance(expected, list) else len(found) == expected, found


def test_no_character_but_space_is_lost():
    text = 'He said: "No." Then -- at 5 p.m. -- she left... Why? "Ask!" A. B. Cox did so.\nEnd'
    joined = "".join(sentences.split_sentences(text))
    assert joined.replace(" ", "") == "".join(text.split())


def test_lines_are_sentences_where_asked():
    assert sentences.split_lines("a. B.\n\n c \n") == ["a. B.", "c"]


def test_documents_end_at_blank_lines_or_at_a_separator():
    assert sentences.split_documents("a\nb\n \n\nc\n") == ["a\nb", "c"]
    assert sentences.split_documents("a\n\nb\n---\nc", "---") == ["a\n\nb", "c"]


def test_spacy_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    sentences.spacy_splitter.cache_clear()
    command = re.escape(f"{sys.executable} -m spacy download en_core_web_sm`.")
    with pytest.raises(ConfigError, match=f"-m pip install spacy && {command}"):
        sentences.spacy_splitter("en_core_web_sm")


def test_spacy_splits_where_it_is_there(monkeypatch):
    def load(name):
        assert name == "some_model"
        parts = [types.SimpleNamespace(text=text) for text in (" a b ", "\n", "c")]
        return lambda text: types.SimpleNamespace(sents=parts)

    monkeypatch.setitem(sys.modules, "spacy", types.SimpleNamespace(load=load))
    sentences.spacy_splitter.cache_clear()
    assert sentences.spacy_splitter("some_model")("a b \n c") == ["a b", "c"]
    sentences.spacy_splitter.cache_clear()
