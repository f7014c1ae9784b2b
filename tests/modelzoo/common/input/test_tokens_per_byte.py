"""Tests of tokens_per_byte.py: what is sure counts, not letters that a path happens to have."""

from __future__ import annotations

import json
import types

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.input.tokens_per_byte import tokens_per_byte  # noqa: E402


def section(data_dir, processor="GptTfRecordsProcessor", vocab_size=50257):
    return types.SimpleNamespace(data_processor=processor, data_dir=data_dir, vocab_size=vocab_size)


@pytest.mark.parametrize("name", ["growth", "bowtie", "compiled", "pile_of_plays"])
def test_tokens_of_text_that_is_read_as_bytes_are_1(name):
    assert tokens_per_byte(section(f"/data/{name}", "GptTextDataProcessor", 257)) == 1.0


def test_folder_names_of_the_configs_tell_and_letters_within_words_do_not():
    assert tokens_per_byte(section("/data/pile_gpt2_msl2048/train")) == 0.29335
    assert tokens_per_byte(section(["/x/Pile", "./pile_gptj_msl2048/val"], vocab_size=50400)) == (
        0.29335
    )
    assert tokens_per_byte(section("owt_gpt2_msl1024/val")) == 0.2434
    for folder in ("/data/growth/train", "compiled", "/pile/runs/mine/train", ["Pile", "mine"]):
        assert tokens_per_byte(section(folder)) is None
    assert tokens_per_byte(section("/data/Pile", vocab_size=257)) is None
    assert tokens_per_byte(section("pile_neox_msl2048/train", vocab_size=50432)) is None
    assert tokens_per_byte(None) is None


def test_a_manifest_wins_over_names(tmp_path):
    def folder(name, settings=None, **counts):
        made = tmp_path / name
        made.mkdir()
        described = {"settings": settings or {}, "counts": counts}
        (made / "manifest.json").write_text(json.dumps(described))
        return str(made)

    pile = folder("pile_gpt2", tokens=30, text_bytes=100)
    other = folder("other", tokens=10, text_bytes=100)
    assert tokens_per_byte(section(pile)) == 0.3
    assert tokens_per_byte(section([pile, other])) == 0.2
    made = folder("bytes", {"tokenizer_type": "ByteTokenizer"}, tokens=102, text_bytes=100)
    assert tokens_per_byte(section(made)) == 1.0
    assert tokens_per_byte(section(folder("pile_articles", articles=3))) is None
