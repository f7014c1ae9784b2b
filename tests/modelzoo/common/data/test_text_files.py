"""Tests of text_files.py: which files are read, how they are split and cut into windows."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from cerebras_tf.errors import DataError
from modelzoo.common.data import text_files
from modelzoo.common.data.text_files import END_OF_DOCUMENT, Windows


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for index in range(40):
        (tmp_path / "sub" / f"{index}.txt").write_text(f"text {index}")
    (tmp_path / "other.bin").write_bytes(b"\0")
    return tmp_path


def test_folder_is_walked_for_the_patterns(folder):
    files = text_files.find_text_files(str(folder), ["*.txt"])
    assert len(files) == 40 and files == sorted(files)
    assert ("sub/0.txt", str(folder / "sub" / "0.txt")) in files


def test_glob_and_file_are_sources_too(folder):
    assert len(text_files.find_text_files(str(folder / "sub" / "1*.txt"), [])) == 11
    assert text_files.find_text_files([str(folder / "other.bin")], []) == [
        ("other.bin", str(folder / "other.bin"))
    ]


def test_text_of_the_package_is_the_default_and_the_same_everywhere():
    files = text_files.find_text_files(None, ["*.py"])
    assert [name for name, _ in files] == [f"{number:02d}.txt" for number in range(40)]
    tokens = text_files.read_tokens(files)
    assert zlib.crc32(tokens.astype("<u2").tobytes()) == 406670193
    kept = text_files.split_files(files, 0.05, training=False)
    assert [name for name, _ in kept] == ["11.txt", "20.txt", "23.txt"]


def test_a_packed_file_is_no_text(folder):
    (folder / "sub" / "b.txt.GZ").write_bytes(b"\x1f\x8b")
    for source in (folder / "sub" / "b.txt.GZ", folder):
        with pytest.raises(DataError, match=r"b\.txt\.GZ: must be text.*Unpack it"):
            text_files.find_text_files(str(source), ["*.txt", "*.GZ"])


def test_missing_source_and_empty_folder_are_named(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        text_files.find_text_files(str(tmp_path / "nowhere"), ["*.txt"])
    with pytest.raises(DataError, match=r"must hold files named \*.txt"):
        text_files.find_text_files(str(tmp_path), ["*.txt"])


def test_splits_are_disjoint_complete_and_independent_of_other_files(folder):
    files = text_files.find_text_files(str(folder), ["*.txt"])
    train = text_files.split_files(files, 0.3, training=True)
    evaluation = text_files.split_files(files, 0.3, training=False)
    assert sorted(train + evaluation) == files and evaluation
    assert text_files.split_files(files[:20], 0.3, True) == [f for f in train if f in files[:20]]


def test_no_fraction_means_no_split_and_an_empty_split_is_refused(folder):
    files = text_files.find_text_files(str(folder), ["*.txt"])
    assert text_files.split_files(files, 0.0, training=False) == files
    with pytest.raises(DataError, match="evaluation split by file must not be empty"):
        text_files.split_files(files[:1], 1e-4, training=False)


def test_tokens_are_bytes_with_an_end_after_each_file(folder):
    path = folder / "sub" / "0.txt"
    path.write_bytes("é\n".encode())
    tokens = text_files.read_tokens([("0.txt", str(path))] * 2)
    assert tokens.tolist() == [0xC3, 0xA9, 10, END_OF_DOCUMENT] * 2


def test_windows_cover_each_epoch_once_and_differ_between_epochs():
    tokens = np.arange(101)
    windows = Windows(tokens, length=5, batch_size=4, seed=1)
    epochs = [
        np.concatenate([windows.batch(e * windows.batches_per_epoch + i) for i in range(5)])
        for e in range(2)
    ]
    for epoch in epochs:
        assert sorted(epoch[:, 0]) == list(range(0, 100, 5))
        assert (np.diff(epoch, axis=1) == 1).all()
    assert (epochs[0] != epochs[1]).any()


def test_batch_is_a_function_of_seed_and_number_only():
    tokens = np.arange(1000)
    first, second = (Windows(tokens, 5, 4, seed=3) for _ in range(2))
    later = [first.batch(i) for i in range(120)]
    np.testing.assert_array_equal(later[110], second.batch(110))
    assert (Windows(tokens, 5, 4, seed=4).batch(0) != later[0]).any()


def test_windows_without_seed_follow_the_text():
    batch = Windows(np.arange(21), 5, 2, None).batch(1)
    assert batch[:, 0].tolist() == [10, 15] and batch.dtype == np.int32


def test_the_rest_of_an_epoch_is_kept_where_it_is_asked_for():
    tokens = np.arange(5 * 6 + 1)
    assert Windows(tokens, 5, 4, None).batches_per_epoch == 1
    windows = Windows(tokens, 5, 4, None, keep_rest=True)
    assert windows.batches_per_epoch == 2
    assert windows.batch(1)[:, 0].tolist() == [20, 25]


def test_too_little_text_is_refused():
    with pytest.raises(DataError, match="must hold at least 21 bytes"):
        Windows(np.arange(20), 5, 4, None)
