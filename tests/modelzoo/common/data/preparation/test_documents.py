"""Tests of documents.py: every row of every kind of file once, bad ones named."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation import documents, input_files
from tests.messages import names

TEXTS = ["first document", "the second, é", "third\nwith two lines"]
ROWS = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def read(path, **options):
    return list(documents.read_documents(str(path), **options))


def make_archive(path, mode, members):
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_a_key_of_rows_is_refused_where_no_file_can_have_rows(tmp_path):
    plain = [str(tmp_path / name) for name in ("a.txt", "b.md")]
    for path in plain:
        Path(path).write_text("text")
    make_archive(tmp_path / "odd.dat", "w", {"a.jsonl": ROWS})
    for name in ("a.jsonl", "c.jsonl.zst", "d.tar.gz", str(tmp_path / "odd.dat")):
        documents.refuse_idle_key([*plain, name], "body")
    documents.refuse_idle_key(plain, "text")
    with pytest.raises(ConfigError) as error:
        documents.refuse_idle_key(plain, "body")
    assert names(error.value, "--text_key", "'body'", "a.txt", "b.md")


def test_text_file_is_one_document_and_an_empty_one_is_none(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "b.txt").write_text("")
    assert read(tmp_path / "a.txt") == ["one\n\ntwo"] and read(tmp_path / "b.txt") == []


def test_byte_order_mark_is_no_text(tmp_path):
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a.txt").write_bytes(mark + b"one " + mark)
    (tmp_path / "b.txt").write_bytes(mark)
    (tmp_path / "c.jsonl").write_bytes(mark + b'{"text": "two"}\n{"text": "three"}\n')
    assert read(tmp_path / "a.txt") == ["one \ufeff"] and read(tmp_path / "b.txt") == []
    assert read(tmp_path / "c.jsonl") == ["two", "three"]
    (tmp_path / "d.txt").write_bytes(mark + b"one\n\n\xe4")
    with pytest.raises(DataError, match=r"d\.txt:3: must be UTF-8 text. Received: byte 0xe4"):
        read(tmp_path / "d.txt")


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".jsonl.gz", gzip.compress), (".jsonl.xz", lzma.compress)]
)
def test_compressed_rows_are_read(tmp_path, suffix, compress):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(compress(ROWS))
    assert read(path) == TEXTS


def test_compressed_text_is_one_document(tmp_path):
    (tmp_path / "x.txt.xz").write_bytes(lzma.compress(b"one\ntwo"))
    assert read(tmp_path / "x.txt.xz") == ["one\ntwo"]


@pytest.mark.parametrize(("name", "mode"), [("x.tar.gz", "w:gz"), ("x.xz", "w:xz")])
def test_files_of_an_archive_are_documents_or_rows(tmp_path, name, mode):
    members = {"0.txt": b"zero", "in/1.jsonl": ROWS, "2.txt": "zwölf".encode(), "3.txt": b""}
    make_archive(tmp_path / name, mode, members)
    assert read(tmp_path / name) == ["zero", *TEXTS, "zwölf"]


def test_bad_row_in_an_archive_is_named_with_member_and_line(tmp_path):
    make_archive(tmp_path / "x.tar.gz", "w:gz", {"rows.jsonl": ROWS + b"{oops\n"})
    with pytest.raises(DataError, match=r"x.tar.gz:rows.jsonl:4: must be a JSON object"):
        read(tmp_path / "x.tar.gz")


def test_archive_cut_at_any_byte_is_refused(tmp_path):
    make_archive(tmp_path / "whole.tar.gz", "w:gz", {"0.txt": b"zero", "1.jsonl": ROWS})
    whole = (tmp_path / "whole.tar.gz").read_bytes()
    for end in range(len(whole)):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:end])
        with pytest.raises(DataError, match="cut.tar.gz: must be a whole gz file"):
            read(tmp_path / "cut.tar.gz")
    (tmp_path / "cut.tar.gz").write_bytes(whole + b"more")
    with pytest.raises(DataError, match="cut.tar.gz: must be a whole gz file"):
        read(tmp_path / "cut.tar.gz")


def test_archive_cut_before_it_was_compressed_is_named(tmp_path):
    make_archive(tmp_path / "x.tar", "w", {"0.txt": b"zero" * 999})
    (tmp_path / "x.xz").write_bytes(lzma.compress((tmp_path / "x.tar").read_bytes()[:2000]))
    with pytest.raises(DataError, match="x.xz: must hold a whole tar archive"):
        read(tmp_path / "x.xz")


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        *((line, ("must be a JSON object",)) for line in (b"[" * 5000, b"{oops")),
        (b'{"text": "a", "n": ' + b"1" * 5000 + b"}", ("must be a JSON object",)),
        (b'{"text": NaN}', ("'text'", "text (float)")),
        (b'{"text": null}', ("text (NoneType)",)),
        (b'{"body": "x"}', ("'text'", "Received: body", "--text_key")),
        (b"[1]", ("Received: list",)),
        (b'{"text": "a\\ud800"}', (r"'\ud800'",)),
        (b'{"text": "\xff"}', ("0xff",)),
    ],
)
def test_bad_row_is_named_with_file_and_line_in_any_part(tmp_path, line, facts):
    path = tmp_path / "b.jsonl"
    path.write_bytes(ROWS + line + b"\n" + ROWS)
    for start in (0, len(ROWS)):
        with pytest.raises(DataError) as error:
            read(path, start=start)
        assert names(error.value, "b.jsonl:4: ", *facts)


def test_numbers_that_are_not_finite_are_passed_over_where_nobody_reads_them(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a", "n": NaN}\n{"text": "b", "n": [-Infinity]}\n{"text": "c", "n": 1e999}\n'
    )
    assert read(tmp_path / "a.jsonl") == ["a", "b", "c"]


def test_bytes_that_are_no_utf8_are_named_with_file_and_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(DataError, match=r"a\.txt:2: .* byte 0xff"):
        read(tmp_path / "a.txt")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"fine\nbad \xff\n"))
    with pytest.raises(DataError, match=r"a\.txt\.gz:2: .* byte 0xff"):
        read(tmp_path / "a.txt.gz")


def test_missing_and_empty_inputs_are_named(tmp_path):
    with pytest.raises(DataError, match="absent: must be a file.*no such path"):
        input_files.find_inputs([str(tmp_path / "absent")], documents.SUFFIXES)
    with pytest.raises(DataError, match="a folder without any"):
        input_files.find_inputs([str(tmp_path)], documents.SUFFIXES)


@pytest.mark.parametrize("unit_bytes", [1, 7, 40, 1000])
def test_parts_of_any_size_hold_every_row_once_in_order(tmp_path, unit_bytes):
    path = tmp_path / "x.jsonl"
    path.write_bytes(ROWS + b"\n" + ROWS)
    units = documents.plan_units([str(path)], unit_bytes)
    rows = [
        text
        for unit in units
        for part in unit
        for text in documents.read_documents(part[0], "text", part[1], part[2])
    ]
    assert rows == TEXTS * 2
    assert sum(end - start for unit in units for _, start, end in unit) == path.stat().st_size


def test_small_files_share_a_unit_and_only_rows_are_divided(tmp_path):
    for name, size in (("a.txt", 4), ("b.txt", 4), ("c.txt", 30), ("d.jsonl", 25)):
        (tmp_path / name).write_bytes(b"x" * size)
    units = documents.plan_units(input_files.find_inputs([str(tmp_path)], documents.SUFFIXES), 8)
    parts = [[(path[-7:].lstrip("/"), start, end) for path, start, end in unit] for unit in units]
    assert [[part[1:] for part in unit] for unit in parts] == [
        [(0, 4), (0, 4)],
        [(0, 30)],
        [(0, 8)],
        [(8, 16)],
        [(16, 24)],
        [(24, 25)],
    ]


def test_bytes_read_are_told_and_sum_to_the_file(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(ROWS * 100))
    told = []
    read(path, on_read=told.append)
    assert sum(told) == path.stat().st_size


def test_rows_have_their_keys_or_are_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "1", "b": "2", "c": 3}\n{"a": "1", "b": 2}\n')
    rows = documents.read_rows(str(path), ("a", "b"))
    assert next(rows) == {"a": "1", "b": "2", "c": 3}
    with pytest.raises(DataError, match="x.jsonl:2: .*text under 'b'. Received: a, b"):
        next(rows)


def test_rows_of_plain_text_are_refused(tmp_path):
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(DataError, match="must hold JSON objects with a, one a line"):
        list(documents.read_rows(str(tmp_path / "x.txt"), ("a",)))


def test_many_inputs_are_described_by_a_sum_that_changes_with_them(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    files = input_files.find_inputs([str(tmp_path)], documents.SUFFIXES)
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in "abc"]
    assert documents.describe(files) == [[f, 1, d] for f, d in zip(files, digests)]
    monkeypatch.setattr(documents, "LISTED_FILES", 2)
    before = documents.describe(files)
    assert (before["files"], before["bytes"]) == (3, 3)
    (tmp_path / "b.txt").write_text("B")
    assert documents.describe(files)["sha256"] != before["sha256"]
