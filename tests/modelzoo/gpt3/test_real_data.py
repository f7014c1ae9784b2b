"""A small GPT learns the bytes of WikiText-2, as its page says; small sibling: the tiny config."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]
pytest.importorskip("tensorflow")

from tests.modelzoo.real_data import DEVICES, WorkFolder

PERPLEXITY = 4.0  # of a byte, on valid.txt


@DEVICES
def test_bytes_of_wikitext_are_learnt(tmp_path, flags):
    folder = WorkFolder(tmp_path, "gpt3_small_wikitext2", {"wikitext-2": "wikitext-2"}, flags)
    folder.run("train_and_eval")
    last = folder.evaluations()[1500]
    assert last["eval/lm_perplexity"] < PERPLEXITY
