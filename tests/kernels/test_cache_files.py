"""Files of the kernel cache: damaged ones, those of other users, and no disk space."""

from __future__ import annotations

import errno
import fcntl
import getpass
import itertools
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cerebras_tf
from cerebras_tf.environment import user_cache_folder
from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels import cache_files, codegen, compiled_jit
from cerebras_tf.kernels.compiled_jit import jit, numba
from cerebras_tf.runtime import precompile
from tests.messages import names

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
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "writable by others": lambda path: path.chmod(0o602),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link": lambda path: (path.rename(f"{path}.nbc"), path.symlink_to(f"{path}.nbc")),
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
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR") as shown:
        cache_files.write(path, CONTENT)
        cache_files.write(path, CONTENT)
    assert len(shown) == 1
    assert not [entry for entry in tmp_path.iterdir() if entry != tmp_path / "kernel"]


def test_parts_that_a_killed_process_left_are_removed(tmp_path):
    (tmp_path / ".kernel.123").touch()
    assert cache_files.use_folder(tmp_path) == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("error")
def test_a_temporary_folder_is_removed_while_a_thread_writes_there(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "_warned", set())
    folder, names = tmp_path / "cache", itertools.count()
    folder.mkdir()
    ended = threading.Event()

    def write():
        while not ended.is_set():
            cache_files.write(folder / str(next(names)), b"content")

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        while next(names) < 50 and not writing.done():
            time.sleep(0.001)
        cache_files.remove_folder(folder)
        ended.set()
        writing.result()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("owner", "mode", "usable"),
    [
        (None, 0o700, True),
        (None, 0o777, True),  # it becomes private
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
    assert stat.S_IMODE(folder.stat().st_mode) == (0o700 if usable else mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_and_files_are_for_the_user_alone(umask, tmp_path, monkeypatch):
    folder = tmp_path / "cerebras_tf" / "kernels"
    monkeypatch.setattr(precompile, "CACHE_FOLDER", folder)
    monkeypatch.setattr(precompile, "compile_step", lambda: None)
    before = os.umask(umask)
    try:
        assert cache_files.use_folder(folder) == ""
        cache_files.write(folder / "kernel", CONTENT)
        precompile.main()
    finally:
        os.umask(before)
    assert len(list(folder.iterdir())) == 3
    for path in (folder.parent, folder, *folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_old_folders_of_other_versions_are_removed(tmp_path):
    def folder(number: int, name: str = "") -> Path:
        path = tmp_path / (name or f"kernels-{number:012x}")
        (path / "inner").mkdir(parents=True)
        days = 40 if number < 2 else 10
        os.utime(path, (time.time() - days * 24 * 3600 + number,) * 2)
        return path

    others = [folder(number) for number in range(cache_files.MAX_OTHER_VERSIONS + 4)]
    foreign = folder(0, "kernels-of-mine")
    left = folder(0, f"{others[0].name}.removed")
    link = tmp_path / f"kernels-{99:012x}"
    link.symlink_to(foreign)
    used = os.open(others[1], os.O_RDONLY)  # by another process
    fcntl.flock(used, fcntl.LOCK_SH)
    current = tmp_path / f"kernels-{98:012x}"
    assert cache_files.use_folder(current) == ""
    assert not left.exists()
    assert set(tmp_path.iterdir()) == {current, foreign, link, others[1], *others[4:]}
    os.close(used)
    assert cache_files.use_folder(current) == ""  # it is not new
    assert others[1].exists()
    cache_files._remove_old_versions(others[-1])
    assert not others[1].exists() and current.exists()  # this process uses it


def test_a_relative_folder_of_the_user_is_refused(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv(name, "a/b")
        with pytest.raises(ConfigError) as refused:
            user_cache_folder()
        assert names(refused.value, name, "a/b")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    with pytest.warns(RuntimeWarning, match="XDG_CACHE_HOME"):
        assert compiled_jit._choose_cache_folder().is_absolute()


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


def squared(x):
    return x * x


FUSED = """
from math import sqrt
from cerebras_tf.kernels.compiled_jit import jit

@jit(python=True)
def kernel(x):
    return sqrt(x)
"""
DAMAGED = [name for name in DAMAGES if "name" not in name and "user" not in name]


def test_every_damaged_file_of_a_cache_is_rebuilt_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_jit, "CACHE_FOLDER", tmp_path)

    def results():
        linked = jit()(squared)
        fused = codegen._load("elementwise_of_a_test", FUSED)
        linked.compile((numba.float64,))  # as for a compiled caller
        found = [linked(0.1), linked(3), fused(0.1), fused(3)]
        used = [linked, linked._for_python, fused]
        return found, sum(sum(each.stats.cache_hits.values()) for each in used)

    expected, hits = results()
    files = [path for path in tmp_path.iterdir() if "work_queue" not in path.name]
    assert (hits, len(files)) == (0, 5)
    for damage in DAMAGED:
        monkeypatch.setattr(cache_files, "_warned", set())
        for path in files:
            DAMAGES[damage](path)
        with pytest.warns(RuntimeWarning) as shown:
            assert results() == (expected, 0), damage
        assert len(shown) == 1
        assert results() == (expected, 5)


def test_kernels_are_compiled_where_the_disk_is_full(tmp_path):
    assert _run(tmp_path / "full", tmp_path, preexec_fn=_no_space)[::2] == (0, 1)


@as_root
def test_a_private_folder_replaces_one_of_another_user(tmp_path):
    _, folder, _ = _run(tmp_path / "cache", tmp_path)
    os.chown(folder, STRANGER, -1)
    hits, private, warned = _run(tmp_path / "cache", tmp_path)
    assert (hits, warned) == (0, 1)
    assert private != folder and not private.parent.exists()
