"""Documents and rows of files: every row once, whatever form they have, and bad ones named."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import sys
import tarfile

import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data import prompts
from modelzoo.common.data.preparation import documents
from modelzoo.common.files import text_sources
from modelzoo.common.tokenizers.tokenizers import ByteTokenizer
from tests.messages import names, raises

TEXTS = ["first document", "the second, é", "third\nwith two lines"]
ROWS = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def read(path, **options):
    return list(text_sources.read_documents(str(path), **options))


def make_archive(path, mode, members):
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_text_file_is_one_document_and_an_empty_one_is_none(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "b.txt").write_text("")
    assert read(tmp_path / "a.txt") == ["one\n\ntwo"] and read(tmp_path / "b.txt") == []


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".jsonl.gz", gzip.compress), (".jsonl.xz", lzma.compress)]
)
def test_compressed_rows_are_read(tmp_path, suffix, compress):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(compress(ROWS))
    assert read(path) == TEXTS


@pytest.mark.parametrize(("name", "mode"), [("x.tar.gz", "w:gz"), ("x.xz", "w:xz")])
def test_files_of_an_archive_are_documents_or_rows(tmp_path, name, mode):
    members = {"0.txt": b"zero", "in/1.jsonl": ROWS, "2.txt": "zwölf".encode(), "3.txt": b""}
    make_archive(tmp_path / name, mode, members)
    assert read(tmp_path / name) == ["zero", *TEXTS, "zwölf"]


def test_archive_cut_at_any_byte_is_refused(tmp_path):
    make_archive(tmp_path / "whole.tar.gz", "w:gz", {"0.txt": b"zero", "1.jsonl": ROWS})
    whole = (tmp_path / "whole.tar.gz").read_bytes()
    for end in range(len(whole)):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:end])
        with raises(DataError, "cut.tar.gz", "complete gz"):
            read(tmp_path / "cut.tar.gz")
    (tmp_path / "cut.tar.gz").write_bytes(whole + b"more")
    with raises(DataError, "cut.tar.gz", "complete gz"):
        read(tmp_path / "cut.tar.gz")


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
        with raises(DataError, "b.jsonl:4: ", *facts):
            read(path, start=start)


@pytest.mark.parametrize("unit_bytes", [1, 7, 40, 1000])
def test_parts_of_any_size_hold_every_row_once_in_order(tmp_path, unit_bytes):
    path = tmp_path / "x.jsonl"
    path.write_bytes(ROWS + b"\n" + ROWS)
    units = documents.plan_units([str(path)], unit_bytes)
    parts, seen = [part for unit in units for part in unit], []
    texts = [read(path, start=start, end=end, on_read=seen.append) for _, start, end in parts]
    assert [text for part in texts for text in part] == TEXTS * 2
    assert sum(end - start for _, start, end in parts) == sum(seen) == path.stat().st_size


def test_rows_have_their_keys_or_are_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "1", "b": "2", "c": 3}\n{"a": "1", "b": 2}\n')
    rows = text_sources.read_rows(str(path), ("a", "b"))
    assert next(rows) == {"a": "1", "b": "2", "c": 3}
    with raises(DataError, "x.jsonl:2", "'b'"):
        next(rows)


# What ends no line, no column and no row.
ODD = "a\u2028b\x85c\x0cd\u00a0e"
QUOTED = 'with, a comma, "quotes" and\nlines\r\n'
ALL = [*TEXTS, ODD, QUOTED, "x" * 200_000]


def write_table(path, texts, key="text"):
    out = io.StringIO(newline="")
    csv.writer(out).writerows([("n", key), *enumerate(texts)])
    data = out.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith("gz") else data)


def write_parquet(path, texts, key="text"):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"n": range(len(texts)), key: texts})
    parquet.write_table(table, path, row_group_size=2)


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.csv.gz", "a.parquet", "hash0123"])
def test_a_table_is_read_as_one_whatever_its_texts_hold(tmp_path, name):
    path = tmp_path / name
    write = write_table if "sv" in name.lower() else write_parquet
    write(path, ALL)
    assert read(path) == ALL
    write(path, ALL, "body")
    assert read(path, text_key="body") == ALL
    with raises(DataError, name, "'text'", "n, body", "--text_key"):
        read(path)


def test_quotes_are_characters_of_tsv(tmp_path, caplog):
    path = tmp_path / "a.tsv"
    path.write_bytes(b'n\ttext\r\n1\t"a\r\n\r\n2\tb ""c""\r\n3\t"d"\n')
    assert read(path) == ['"a', 'b ""c""', '"d"'] and not caplog.text
    path.write_text('n\ttext\n1\t"a ""b"""\n2\t"c ""d"""\n')
    assert read(path) == ['"a ""b"""', '"c ""d"""']
    assert caplog.text.count("doubled quotes") == 1 and names(caplog.text, f"{path}:2", "CSV")
    path.write_text('n\ttext\n1\t"a\nb"\n')
    with raises(DataError, "a.tsv:3", "Quotes are characters"):
        read(path)


def test_row_groups_are_read_once_in_parts_of_any_size(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, TEXTS * 5)
    for unit_bytes in (1 << 6, 1 << 8, 1 << 20):
        units = documents.plan_units([str(path)], unit_bytes)
        parts = [part for unit in units for part in unit]
        seen = []
        texts = [read(path, start=first, end=end, on_read=seen.append) for _, first, end in parts]
        assert [text for part in texts for text in part] == TEXTS * 5
        assert sum(seen) == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "data", "facts"),
    [
        ("a.csv", b"n,text\n1,a\n2\n", ["a.csv:3", "2 columns", "1"]),
        ("a.csv", b'n,text\n1,"a\n2,b\n', ["a.csv:3", "end of data"]),
        ("a.csv", b'n,text\n1,"a"b\n', ["a.csv:2"]),
        ("a.csv", b"n,text,text\n1,a,b\n", ["a.csv:1", "n, text, text"]),
        ("a.csv", b"n;text\n1;a\n", ["a.csv:1", "n;text"]),
        ("a.csv", b"n,text\n1,a\n2,\xff\n", ["a.csv:3", "0xff"]),
        ("a.csv", "n,text\n1,a\n".encode("utf-16"), ["a.csv:1", "UTF-16"]),
        ("a.csv", b"1," + b"word " * 99 + b"\n", ["1, word", " ..."]),
        ("a.csv", b"PAR1", ["a.csv", "PAR1"]),
        ("a.json", b'[{"text": "a"}, {"body": "a"}]', ["a.json: item 2", "body"]),
        ("a.json", b'[{"text": "a"},', ["a.json"]),
        ("a", b'{"text": "a"}\n', ["JSON", ".jsonl"]),
        ("a.md", b'[\n {"text":\n "a"}]\n', ["JSON", ".json"]),
        ("a.txt", "text".encode("utf-16-le"), ["UTF-16"]),
        ("a", b"%PDF-1.7\n", ["PDF"]),
        ("a.txt", b"PK\3\4" + b"a" * 99, ["zip"]),
        ("a.txt", b"\x1f\x8b\x08", ["compressed", ".gz"]),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, name, data, facts):
    (tmp_path / name).write_bytes(data)
    with raises(DataError, name, *facts):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (ROWS, ".jsonl"),
        (b"id,text\n1,one\n2,two\n", ".csv"),
        (b'text;label\n"one\ntwo;";a\n', ".csv"),
        (b"id\ttext\r\n1\tone, two\r\n", ".tsv"),
        (b'text,label\n"' + b"word,\n" * 1000 + b'",a\n', ".csv"),
        (b'text,label\n"a",b\n"' + b"word,\n" * 1000, ".csv"),
        (b"one,two\n" + b"word " * 1000, None),
        (b"Yes, no\nWell, so\n", None),
        (b"Yes,no\nand so on\n", None),
        (b"Yes,no", None),
    ],
)
def test_a_text_file_that_begins_as_rows_is_read_with_a_warning(tmp_path, caplog, data, end):
    (tmp_path / "a.txt").write_bytes(data)
    assert read(tmp_path / "a.txt") == [data.decode()]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (end is not None)
    assert all("a.txt" in line and line.endswith(f"rename it to {end}") for line in lines)


@pytest.mark.parametrize("data", [b"PAR1", b"PAR1" * 9])
def test_a_damaged_parquet_file_is_refused(tmp_path, data):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(data)
    with raises(DataError, "a.parquet", "complete Parquet"):
        read(tmp_path / "a.parquet")


def test_parquet_without_its_package_is_refused_with_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with raises(ConfigError, "a.parquet", "pyarrow", "pip install"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_are_the_same_whichever_way_their_lines_end(tmp_path, end):
    rows = [json.dumps({"text": text}, ensure_ascii=False) for text in (*TEXTS, ODD)]
    (tmp_path / "a.jsonl").write_bytes(end.join(["\ufeff" + rows[0], *rows[1:], ""]).encode())
    assert read(tmp_path / "a.jsonl") == [*TEXTS, ODD]
    (tmp_path / "a.json").write_bytes(f"[{f',{end}'.join(rows)}]".encode())
    assert read(tmp_path / "a.json") == [*TEXTS, ODD]
    (tmp_path / "a.csv").write_bytes(end.join(["text", "a", ODD, ""]).encode())
    assert read(tmp_path / "a.csv") == ["a", ODD]
    (tmp_path / "b.jsonl").write_bytes(end.join([rows[0], "", "{oops", ""]).encode())
    with raises(DataError, "b.jsonl:3"):
        read(tmp_path / "b.jsonl")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.txt.gz"])
def test_lines_are_read_from_text_files_only(tmp_path, name):
    for path in (tmp_path / name, tmp_path / "a.txt"):
        path.write_bytes(b"one line\n")
    text_sources.require_text(str(tmp_path / "a.txt"))
    with raises(DataError, name):
        text_sources.require_text(str(tmp_path / name))
    with raises(DataError, name):
        prompts.read_prompts(str(tmp_path / name), ByteTokenizer(), 257, None)
