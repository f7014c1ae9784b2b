"""Input of a preparation: every file and every row once, bad ones named."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

pytest.importorskip("tqdm")

from cerebras_tf.errors import DataError
from modelzoo.commands import prepare
from modelzoo.commands.main import main
from modelzoo.common.data.preparation import documents, input_files
from modelzoo.common.data.preparation.input_files import find_inputs
from modelzoo.common.files import text_sources
from tests.messages import names, raises


def test_small_files_share_a_unit_and_only_rows_are_divided(tmp_path):
    for name, size in (("a.txt", 4), ("b.txt", 4), ("c.txt", 30), ("d.jsonl", 25)):
        (tmp_path / name).write_bytes(b"x" * size)
    units = documents.plan_units(input_files.find_inputs([str(tmp_path)], text_sources.SUFFIXES), 8)
    parts = [[(path[-7:].lstrip("/"), start, end) for path, start, end in unit] for unit in units]
    assert [[part[1:] for part in unit] for unit in parts] == [
        [(0, 4), (0, 4)],
        [(0, 30)],
        [(0, 8)],
        [(8, 16)],
        [(16, 24)],
        [(24, 25)],
    ]


def test_many_inputs_are_described_by_a_sum_that_changes_with_them(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    files = input_files.find_inputs([str(tmp_path)], text_sources.SUFFIXES)
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in "abc"]
    assert documents.describe(files) == [[f, 1, d] for f, d in zip(files, digests)]
    monkeypatch.setattr(documents, "LISTED_FILES", 2)
    before = documents.describe(files)
    assert (before["files"], before["bytes"]) == (3, 3)
    (tmp_path / "b.txt").write_text("B")
    assert documents.describe(files)["sha256"] != before["sha256"]


def listed(paths, tell=lambda line: None):
    return find_inputs(paths, text_sources.SUFFIXES, tell)


def fill(folder, names):
    for name in names:
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_bytes(
            gzip.compress(b"text") if name.lower().endswith("z") else b"text"
        )


def test_documented_forms_are_read_in_letters_of_any_case(tmp_path):
    pytest.importorskip("zstandard")
    fill(tmp_path, ["a.txt.gz", "in/B.TXT", "c.Txt.GZ", "d.jsonl"])
    fill(tmp_path, ["e.txt.zst", "f.txt.xz", "g.jsonl.xz", "h.jsonl.zst", "i.jsonl.gz", "k.tar.gz"])
    lines = []
    files = listed([str(tmp_path)], lines.append)
    assert len(files) == 10 and not lines
    for name in ("a.txt.gz", "in/B.TXT", "c.Txt.GZ"):
        assert list(text_sources.read_documents(str(tmp_path / name))) == ["text"]


def test_files_skipped_for_their_names_are_logged_in_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill("in", ["a.txt", "b.md", "c.md", "d.log.gz", "e", ".a.txt", ".ipynb_checkpoints/a.txt"])
    lines = []
    assert listed(["in"], lines.append) == ["in/a.txt"]
    (line,) = lines
    assert line.startswith("in: 4 of 5 files ")
    assert "in/b.md" in line
    assert listed(["in/b.md"], lines.append) == ["in/b.md"] and len(lines) == 1
    fill("other", ["b.md"])
    with raises(DataError, "other", "1 other"):
        listed(["other"])


def test_links_are_followed_loops_end_and_a_file_counts_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill("far", ["a.txt"])
    fill("in", ["b.txt", "deep/c.txt"])
    for link, target in (("link", "../far"), ("again", "deep"), ("loop", "."), ("self", "self")):
        Path("in", link).symlink_to(target)
    assert listed(["in"]) == ["in/b.txt", "in/deep/c.txt", "in/link/a.txt"]
    found = listed(["far/a.txt", str(tmp_path / "far"), "in"])
    assert len(found) == 3 and "far/a.txt" in found


def preparing(records, amount, rows=5):
    def prepare(advance):
        if amount:
            advance(amount)
        return {"counts": {"rows": rows, "records": records}, "files": [{}] * 2}

    return prepare


@pytest.mark.parametrize(
    ("inputs", "named"), [(["a.txt"], "a.txt"), ([*"abcde"], "a, b, c and 2 more")]
)
def test_no_record_at_all_is_an_error_with_the_inputs_and_a_remedy(inputs, named):
    with raises(DataError, "out", named, "5 rows, 0 records", "Add text."):
        prepare.run_preparation(preparing(0, 1), inputs, "out", remedy="Add text.")


@pytest.mark.parametrize("option", [("--seed", "5"), ("--ftfy_normalizer", "NFD")])
def test_options_that_change_nothing_are_refused(option, tmp_path, capsys):
    inputs = ("--input_dir", str(tmp_path), "--tokenizer_type", "ByteTokenizer")
    assert main(["prepare", "gpt", *inputs, *option]) == 2
    assert names(capsys.readouterr().err, *option)
