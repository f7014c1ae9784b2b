"""Tests of tokens_per_byte.py: what is sure counts, not letters that a path happens to have."""

from __future__ import annotations

import functools
import json
import os
import types

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.data.text_files import find_text_files, split_files
from modelzoo.common.train.language_model import tokens_per_byte

of = functools.partial(tokens_per_byte, training=False)


def section(data_dir, processor="GptTfRecordsProcessor", vocab_size=50257):
    return types.SimpleNamespace(data_processor=processor, data_dir=data_dir, vocab_size=vocab_size)


def text(data_dir, eval_fraction=0.0):
    return types.SimpleNamespace(
        data_processor="GptTextDataProcessor",
        data_dir=str(data_dir),
        file_patterns=["*.txt"],
        eval_fraction=eval_fraction,
    )


def test_of_text_that_is_read_as_bytes_ends_of_files_count_as_tokens(tmp_path):
    for name in "abcdefgh":
        (tmp_path / f"{name}.txt").write_text("x" * 9)
    assert of(text(tmp_path)) == 10 / 9
    (tmp_path / "long.txt").write_text("x" * 928)
    assert of(text(tmp_path)) == 1009 / 1000
    for training in (True, False):  # long.txt is in one of them
        files = split_files(find_text_files(str(tmp_path), ["*.txt"]), 0.5, training)
        size = sum(os.path.getsize(path) for _, path in files)
        assert of(text(tmp_path, 0.5), training=training) == (size + len(files)) / size
    assert of(text(tmp_path / "absent")) is None


def test_folder_names_of_the_configs_tell_and_letters_within_words_do_not():
    assert of(section("/data/pile_gpt2_msl2048/train")) == 0.29335
    assert of(section(["/x/Pile", "./pile_gptj_msl2048/val"], vocab_size=50400)) == 0.29335
    assert of(section("owt_gpt2_msl1024/val")) == 0.2434
    for folder in ("/data/growth/train", "compiled", "/pile/runs/mine/train", ["Pile", "mine"]):
        assert of(section(folder)) is None
    assert of(section("/data/Pile", vocab_size=257)) is None
    assert of(section("pile_neox_msl2048/train", vocab_size=50432)) is None
    assert of(None) is None


def test_a_manifest_wins_over_names(tmp_path):
    def folder(name, settings=None, **counts):
        made = tmp_path / name
        made.mkdir()
        described = {"settings": settings or {}, "counts": counts}
        (made / "manifest.json").write_text(json.dumps(described))
        return str(made)

    pile = folder("pile_gpt2", tokens=30, text_bytes=100)
    other = folder("other", tokens=10, text_bytes=100)
    assert of(section(pile)) == 0.3
    assert of(section([pile, other])) == 0.2
    made = folder("bytes", {"tokenizer_type": "ByteTokenizer"}, tokens=102, text_bytes=100)
    assert of(section(made)) == 1.02
    assert of(section(folder("pile_articles", articles=3))) is None
