"""Tests of files that appear whole or not at all."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.whole_file import remove_partial, replacing, require_place, write_whole


def test_a_text_is_written_into_a_folder_that_is_made(tmp_path):
    path = write_whole(tmp_path / "a" / "b.txt", "é\n")
    assert path == tmp_path / "a" / "b.txt"
    assert path.read_text(encoding="utf-8") == "é\n"
    assert [file.name for file in path.parent.iterdir()] == ["b.txt"]


def test_a_text_that_cannot_be_written_leaves_no_part_of_it(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a.txt", "\ud800")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_file_before_and_names_it(tmp_path, monkeypatch):
    path = tmp_path / "a.html"
    path.write_text("before")

    def full(self, content):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space") as refused:
        write_whole(path, "after")
    assert refused.value.filename == str(path) and "None" not in str(refused.value)
    assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_error_of_another_file_is_not_said_of_the_written_one(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "copy") as partial:
        shutil.copyfile(tmp_path / "source", partial)
    assert str(raised.value.filename) == str(tmp_path / "source")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    kept = [tmp_path / name for name in ("a.1", ".a", ".a.b", ".vimrc.swp.1x")]
    for path in [*kept, tmp_path / ".params.yaml.123", other / "file"]:
        path.touch()
    (tmp_path / ".unfinished").mkdir()
    (tmp_path / ".link.1").symlink_to(other / "file")
    with replacing(tmp_path / "being_written") as partial:
        remove_partial(tmp_path)
        found = {path.name for path in tmp_path.iterdir()}
        assert found == {"other", ".link.1", partial.name, *(path.name for path in kept)}
    (tmp_path / ".b.1").touch()
    monkeypatch.setattr("os.getuid", lambda: -1)
    remove_partial(tmp_path)
    assert (tmp_path / ".b.1").exists() and (other / "file").exists()


def test_a_file_that_is_taken_for_that_of_a_killed_process_is_made_again(tmp_path, monkeypatch):
    lock, calls = fcntl.flock, []

    def locked(file, how):
        calls.append(how)
        if len(calls) == 1:
            remove_partial(tmp_path)
        lock(file, how)

    monkeypatch.setattr("fcntl.flock", locked)
    write_whole(tmp_path / "a", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert len(calls) == 3 and (tmp_path / "a").read_text() == "whole"


def test_content_is_on_the_disk_before_it_replaces_a_file(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr("os.fsync", lambda file: order.append("sync"))
    replace = Path.replace
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda *paths: (order.append("replace"), replace(*paths))
    )
    write_whole(tmp_path / "a", b"\xff")
    assert order == ["sync", "replace"] and (tmp_path / "a").read_bytes() == b"\xff"


def test_links_and_pipes_stay_what_they_are(tmp_path):
    (tmp_path / "link").symlink_to("folder/target")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_text() == "text"
    write_whole("/dev/null", "text")
    require_place("/dev/null", "--out")
    assert not Path("/dev/null").is_file()


def test_a_place_that_cannot_be_written_is_refused_beforehand(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("text")
    for path in (None, tmp_path / "a" / "b", tmp_path / "file"):
        require_place(path, "--out")
    for path, told in (
        (tmp_path, "a folder"),
        ("/", "a folder"),
        (tmp_path / "file" / "a" / "b", "below .*file, which is no folder"),
        ("/dev/null/a", "below /dev/null, which is no folder"),
    ):
        with pytest.raises(
            ConfigError, match=f"--out {path}: must be a file .* Received: .*{told}"
        ):
            require_place(path, "--out")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ConfigError, match="where you may not write"):
        require_place(tmp_path / "a", "--out")
