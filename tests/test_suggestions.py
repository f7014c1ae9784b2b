"""Names and paths that a user probably meant."""

from __future__ import annotations

import pytest

from cerebras_tf.suggestions import did_you_mean, did_you_mean_path, nearest, nearest_path


def test_the_nearest_word_is_told_capitals_aside():
    known = ["train", "eval", "train_and_eval"]
    assert did_you_mean("trian", known) == "Did you mean train?"
    assert did_you_mean("EVAL", known) == "Did you mean eval?"
    assert (nearest("x", known), did_you_mean("x", known)) == (None, "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with records and a checkpoint."""
    for name in ("sst2_msl128/train/part.tfrecord", "sst2_msl128/valid/x", "vocab.txt", "Ä/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "path,meant",
    [
        ("vocba.txt", "vocab.txt"),
        ("VOCAB.TXT", "vocab.txt"),
        ("./sst2_msl128/trian", "sst2_msl128/train"),
        ("sst_msl128/train", "sst2_msl128/train"),
        ("sst_msl128/trian/part.tfrecord", "sst2_msl128/train/part.tfrecord"),
        ("sst2_msl182/other", "sst2_msl128"),
        ("local.txt", None),  # has an ending in common
        ("a/a.txt", None),
        ("vocab.txt", None),
        ("vocab.txt/inside", None),
        ("nothing/like/it", None),
        ("", None),
    ],
)
def test_a_path_is_looked_for_along_its_folders(folder, path, meant):
    assert did_you_mean_path(path) == (f"Did you mean {meant}?" if meant else "")
    whole = folder / path
    assert nearest_path(whole) == (folder / meant if meant else None)
