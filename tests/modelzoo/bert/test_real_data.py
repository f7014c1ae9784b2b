"""A small BERT learns masked words of WikiText-2, as its page says; sibling: test_learning.py."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]
pytest.importorskip("tensorflow")

from tests.modelzoo.real_data import DEVICES, UNCASED, WorkFolder

OPTIONS = "--do_lower_case --wikitext-detokenize --multiple_docs_in_single_file --mlm_only"
OPTIONS += " --disable_masking --short_seq_prob 0 --allow_cross_document_examples"


@DEVICES
def test_masked_words_of_wikitext_are_learnt(tmp_path, flags):
    links = {"wikitext-2": "wikitext-2", "vocab.txt": UNCASED}
    folder = WorkFolder(tmp_path, "bert_small_wikitext2", links, flags)
    for split in ("train", "valid"):
        folder.prepare(
            "bert",
            *["--input_dir", f"wikitext-2/{split}.txt", "--vocab_file", "vocab.txt"],
            *["--output_dir", f"wikitext2_uncased_msl128/{split}", *OPTIONS.split()],
        )
    folder.run("train_and_eval")
    losses = [values["loss"] for _, values in sorted(folder.evaluations().items())]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 6.25
