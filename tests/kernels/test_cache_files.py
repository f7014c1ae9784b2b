"""Files of the kernel cache: damaged ones, those of other users, and no disk space."""

from __future__ import annotations

import errno
import getpass
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tf
from cerebras_tf.environment import user_cache_folder
from cerebras_tf.kernels import cache_files

CONTENT = bytes(range(256))
STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def _nothing_warned(monkeypatch):
    monkeypatch.setattr(cache_files, "_warned", set())


def _flip_one_bit(path):
    stored = bytearray(path.read_bytes())
    stored[-1] ^= 1
    path.write_bytes(stored)


def _exchange(path):
    other = path.with_name("other")
    cache_files.write(other, CONTENT)
    other.replace(path)


DAMAGES = {
    "flipped": _flip_one_bit,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:99]),
    "empty": lambda path: path.write_bytes(b""),
    "of another name": _exchange,
    "of another user": lambda path: os.chown(path, STRANGER, -1),
}


@pytest.mark.parametrize(
    "damage", [pytest.param(d, marks=as_root if "user" in d else ()) for d in DAMAGES]
)
def test_only_what_was_written_is_read(damage, tmp_path):
    path = tmp_path / "kernel"
    cache_files.write(path, CONTENT)
    assert cache_files.read(path) == CONTENT
    DAMAGES[damage](path)
    with pytest.warns(RuntimeWarning) as shown:
        assert cache_files.read(path) is None
        assert cache_files.read(path) is None
    assert len(shown) == 1 and str(path) in str(shown[0].message)
    cache_files.write(path, CONTENT)
    assert cache_files.read(path) == CONTENT


@pytest.mark.parametrize("cause", ["a folder", "no space", "no folder"])
def test_what_cannot_be_written_warns_once(cause, tmp_path, monkeypatch):
    path = tmp_path / "kernel"
    if cause == "a folder":
        path.mkdir()
    elif cause == "no folder":
        path = path / "kernel"
    else:
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(full))
    assert cache_files.read(path) is None
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR") as shown:
        cache_files.write(path, CONTENT)
        cache_files.write(path, CONTENT)
    assert len(shown) == 1
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("owner", "mode", "usable"),
    [
        (None, 0o700, True),
        (None, 0o777, True),  # as on a file system without modes; each file's owner is checked
        (STRANGER, 0o700, False),
        (STRANGER, 0o1777, False),
    ],
)
@pytest.mark.parametrize("linked", [False, True])
@as_root
def test_a_folder_that_others_can_write_is_not_used(owner, mode, usable, linked, tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(mode)
    if owner is not None:
        os.chown(folder, owner, -1)
    if linked:
        (tmp_path / "link").symlink_to(folder)
        folder = tmp_path / "link"
    assert (cache_files.why_unusable(folder) == "") == usable


def test_new_folders_are_for_the_user_alone(tmp_path):
    folder = tmp_path / "cerebras_tf" / "kernels"
    assert cache_files.why_unusable(folder) == ""
    for each in (folder, folder.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700


@pytest.mark.parametrize("home", ["", None])
def test_the_cache_of_a_user_whose_home_is_not_set(home, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", os.path.expanduser("~"))
    expected = Path(os.path.expanduser(f"~{getpass.getuser()}"), ".cache")
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    assert user_cache_folder() == str(expected)


MODULE = """
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER, jit

@jit(python=True)
def tripled(x):
    return 3 * x

assert [tripled(2), tripled(2.0)] == [6, 6.0]
print(sum(tripled.stats.cache_hits.values()), CACHE_FOLDER)
"""


def _no_space():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _run(cache, tmp_path, **options):
    path = tmp_path / "compiled_tripled.py"
    path.write_text(MODULE)
    root = str(Path(cerebras_tf.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )
    assert ran.returncode == 0, ran.stderr
    hits, folder = ran.stdout.split()
    return int(hits), Path(folder), ran.stderr.count("RuntimeWarning: compiled kernels: ")


def test_kernels_are_compiled_again_where_the_cache_is_damaged_or_full(tmp_path):
    assert _run(tmp_path / "full", tmp_path, preexec_fn=_no_space)[::2] == (0, 1)
    hits, folder, warned = _run(tmp_path / "cache", tmp_path)
    assert (hits, warned) == (0, 0)
    for path in folder.glob("*.nbc"):
        _flip_one_bit(path)
    assert _run(tmp_path / "cache", tmp_path) == (0, folder, 1)
    assert _run(tmp_path / "cache", tmp_path) == (2, folder, 0)


@as_root
def test_a_private_folder_replaces_one_of_another_user(tmp_path):
    _, folder, _ = _run(tmp_path / "cache", tmp_path)
    os.chown(folder, STRANGER, -1)
    hits, private, warned = _run(tmp_path / "cache", tmp_path)
    assert (hits, warned) == (0, 1)
    assert private != folder and not private.parent.exists()
