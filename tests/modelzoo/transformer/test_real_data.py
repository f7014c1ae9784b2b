"""A small Transformer learns to translate Multi30k, as its page says; sibling: the tiny config."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]
pytest.importorskip("tensorflow")

from tests.modelzoo.real_data import DEVICES, WorkFolder

FILES = [f"multi30k/{split}.{side}" for split in ("train", "val", "test") for side in ("en", "de")]


@DEVICES
def test_captions_are_translated_with_more_than_22_bleu(tmp_path, flags):
    links = {name: name for name in FILES}
    folder = WorkFolder(tmp_path, "transformer_small_multi30k", links, flags)
    folder.prepare(
        "vocab",
        *["--input_files", "multi30k/train.en", "multi30k/train.de"],
        *["--algorithm", "bpe", "--vocab_size", "6000", "--output_dir", "multi30k/vocab"],
    )
    folder.run("train")
    folder.run("predict")
    assert folder.scores()["bleu"] > 22
