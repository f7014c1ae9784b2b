"""Tests of text_cleaning.py on sentences whose original spelling is known."""

from __future__ import annotations

import pytest

from modelzoo.common.data.preparation import text_cleaning


@pytest.mark.parametrize(
    ("split", "written"),
    [
        ("worth 1 @,@ 200 @.@ 50 , said", "worth 1,200.50, said"),
        ("a well @-@ known tale .", "a well-known tale."),
        (" \n = Valkyria Chronicles = \n \n Text .", "\n= Valkyria Chronicles =\n\nText."),
        ("it 's a dog ; they 're gone", "it's a dog; they're gone"),
        ("the soldiers ' song", "the soldiers' song"),
        ('he said " no way " and left', 'he said "no way" and left'),
        ("a game ( 2011 ) for play", "a game (2011) for play"),
        ("1914 – 18 and $ 5", "1914–18 and $5"),
        ("nothing to mend here", "nothing to mend here"),
    ],
)
def test_wikitext_reads_as_written(split, written):
    assert text_cleaning.detokenize_wikitext(split) == written


def test_text_stays_as_it_is_unless_asked_for():
    assert text_cleaning.clean("schÃ¶n , e\u0301") == "schÃ¶n , e\u0301"


def test_ftfy_mends_characters_and_brings_them_into_the_form():
    pytest.importorskip("ftfy")
    assert text_cleaning.clean("schÃ¶n e\u0301", "NFC") == "schön \u00e9"
    assert text_cleaning.clean("e\u0301", "none") == "e\u0301"
    assert text_cleaning.clean("\u00e9 , so", "NFD", wikitext=True) == "e\u0301, so"
