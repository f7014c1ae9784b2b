"""Tests of compressed.py: whole files are read whole, and no cut or spoilt one passes for one."""

from __future__ import annotations

import gzip
import io
import lzma

import pytest

from cerebras_tf.errors import DataError
from modelzoo.common.files.compressed import open_decompressed

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


def test_streams_are_read_one_behind_the_other(form):
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
            with pytest.raises(DataError, match=f"{path}: must be a whole .* file"):
                read(whole[:end], path)


@pytest.mark.parametrize("more", [b"x", b"more", b"\0more", b"garbage" * 2000])
def test_something_else_behind_the_end_is_refused(form, more):
    path, compress = form
    with pytest.raises(DataError, match=f"{path}: must be a whole .* file"):
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
    with pytest.raises(DataError, match="must be a whole"):
        read(bytes(spoilt), path)


def test_large_file_is_read_in_pieces(form):
    path, compress = form
    text = b"".join(b"%d\n" % number for number in range(60_000))
    assert read(compress(text), path) == text
