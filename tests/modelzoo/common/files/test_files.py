"""Compressed files, JSON and lines of text: no cut or damaged file passes for a whole one."""

from __future__ import annotations

import gzip
import io
import lzma
import random

import pytest

from cerebras_tf.errors import CerebrasError, DataError
from modelzoo.common.convert.hugging_face import read_json
from modelzoo.common.files import text_lines
from modelzoo.common.files.compressed import open_decompressed
from modelzoo.common.files.json_text import parse_json, write_json_lines
from tests.messages import raises

ENDS = ["\n", "\r\n", "\r"]
# White space for Python that ends no line and no column.
SPACES = [*"\x0b\x0c\x1c\x1d\x1e\x85\u00a0\u2028\u2029\u3000"]
TEXT = b"one line of text, and then another\n" * 3


def zstd(**options):
    def compress(data):
        zstandard = pytest.importorskip("zstandard")
        return zstandard.ZstdCompressor(**options).compress(data)

    return compress


def streamed_zstd(data):
    """A frame that tells neither the size of its content nor a checksum, as of a pipe."""
    zstandard = pytest.importorskip("zstandard")
    writer = zstandard.ZstdCompressor(write_checksum=False).compressobj()
    return writer.compress(data) + writer.flush()


FORMS = {
    "gz": ("x.gz", gzip.compress),
    "tgz": ("x.tgz", gzip.compress),
    "xz": ("x.xz", lzma.compress),
    "xz without a check": ("x.xz", lambda data: lzma.compress(data, check=lzma.CHECK_NONE)),
    "zstd": ("x.zst", zstd()),
    "zstd with a checksum": ("x.zst", zstd(write_checksum=True)),
    "zstd without a size": ("x.zst", zstd(write_content_size=False)),
    "zstd of a pipe": ("x.zst", streamed_zstd),
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def read(data, path):
    return open_decompressed(io.BytesIO(data), path).read()


def test_concatenated_streams_are_read(form):
    path, compress = form
    assert read(compress(TEXT), path) == TEXT
    assert read(compress(TEXT) + compress(b"") + compress(b"end"), path) == TEXT + b"end"


def test_file_cut_at_any_byte_is_refused(form):
    path, compress = form
    for streams in ([compress(TEXT)], [compress(TEXT[:40]), compress(TEXT[40:])]):
        whole = b"".join(streams)
        # A file cut between two streams is a whole file of the first.
        ends = {len(streams[0])} if len(streams) > 1 else set()
        for end in set(range(len(whole))) - ends:
            with pytest.raises(DataError, match=f"{path}: must be a complete .* file"):
                read(whole[:end], path)


@pytest.mark.parametrize("more", [b"x", b"more", b"\0more", b"garbage" * 2000])
def test_data_after_the_end_are_refused(form, more):
    path, compress = form
    with pytest.raises(DataError, match=f"{path}: must be a complete .* file"):
        read(compress(TEXT) + more, path)


@pytest.mark.parametrize("name", ["gz", "xz"])
def test_zeros_may_follow_where_the_format_allows_them(name):
    path, compress = FORMS[name]
    assert read(compress(TEXT) + b"\0" * 512, path) == TEXT


def test_frames_of_zstd_that_hold_no_text_are_skipped():
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    path, compress = FORMS["zstd"]
    assert read(skippable + compress(TEXT) + skippable, path) == TEXT


@pytest.mark.parametrize("name", ["gz", "xz", "zstd with a checksum"])
def test_changed_byte_fails_the_checksum(name):
    path, compress = FORMS[name]
    spoilt = bytearray(compress(bytes(range(256)) * 8))
    spoilt[len(spoilt) // 2] ^= 1
    with pytest.raises(DataError, match="must be a complete"):
        read(bytes(spoilt), path)


def test_large_file_is_read_in_pieces(form):
    path, compress = form
    text = b"".join(b"%d\n" % number for number in range(60_000))
    assert read(compress(text), path) == text


@pytest.mark.parametrize("text", ["{", "[" * 5000])
def test_what_cannot_be_read_is_a_value_error(tmp_path, text):
    with pytest.raises(ValueError):
        parse_json(text)
    (tmp_path / "config.json").write_text(text)
    with raises(CerebrasError, tmp_path / "config.json"):
        read_json(tmp_path / "config.json")


def test_a_row_that_cannot_be_written_leaves_the_file_before(tmp_path):
    path = write_json_lines(tmp_path / "rows.jsonl", [{"é": 1}, {"b": [2]}])
    assert path.read_text(encoding="utf-8") == '{"é": 1}\n{"b": [2]}\n'
    with pytest.raises(TypeError):
        write_json_lines(path, [{"a": 1}, {"b": object()}])
    assert path.read_text(encoding="utf-8") == '{"é": 1}\n{"b": [2]}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("last", [True, False])
def test_a_file_has_the_same_lines_whichever_way_they_end(tmp_path, end, last):
    lines = ["a b", "", *(f"c{space}d" for space in SPACES), "\x85", "e"]
    path = tmp_path / "a.txt"
    path.write_bytes(("\ufeff" + end.join(lines) + end * last).encode())
    assert text_lines.read_lines(path) == lines


def test_a_cr_within_a_line_is_a_character_of_it_where_lines_end_with_lf():
    assert text_lines.split("a\rb\r\n\nc\r") == ["a\rb", "", "c"]
    assert text_lines.split("a\rb", text_lines.LF) == ["a\rb"]
    assert text_lines.split("") == []


def test_columns_are_separated_by_what_their_format_names():
    line = f" 10\u00a0000 \t{''.join(SPACES)} O\t"
    assert text_lines.columns(line) == ["10\u00a0000", "".join(SPACES), "O"]
    assert text_lines.columns("a b\tc\t", "\t") == ["a b", "c", ""]
    assert text_lines.columns(" \t") == []
    assert text_lines.words("a  b\nc\u3000d\n") == ["a", "b", "c\u3000d"]


@pytest.mark.parametrize("end", ENDS)
def test_parts_of_a_file_are_its_lines(tmp_path, monkeypatch, end):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 7)
    draw = random.Random(1)
    path = tmp_path / "a.txt"
    for count in (0, 1, 2, 6, 9, 30):
        lines = ["x" * draw.randrange(6) for _ in range(count)]
        data = "".join(line + end for line in lines).encode()
        for cut in {0, len(end) if lines and lines[-1] else 0}:
            path.write_bytes(data[: len(data) - cut])
            number, places, found = text_lines.line_ends(path, 3)
            parts = [data[a:b].decode() for a, b in zip(places, places[1:])]
            assert number == count and places[-1] == len(data) - cut
            assert len(parts) == -(-count // 3)
            assert [line for part in parts for line in text_lines.split(part, found)] == lines


def test_a_line_that_is_not_utf_8_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\nb\xff\n")
    with raises(DataError, "a.txt:2", "byte 0xff"):
        text_lines.read_lines(path)
    with raises(DataError, "a.txt:8"):
        text_lines.decode(b"a\n\xff", path, 7)


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path):
    (tmp_path / "texts.en").write_text("a\n")
    for read in (text_lines.read_lines, lambda path: text_lines.line_ends(path, 3)):
        with pytest.raises(DataError, match=r"Did you mean .*texts\.en\?"):
            read(tmp_path / "text.en")
