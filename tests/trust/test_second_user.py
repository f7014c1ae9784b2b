"""Another user of this computer, who writes in /tmp and in folders with open modes.

What this user has prepared is not read, followed, run or overwritten, and what a run writes is for
its user alone, whatever the umask.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels import cache_files
from cerebras_tf.memoryx.folder_lock import locked_folder
from cerebras_tf.memoryx.process_folder import StoreFolder
from cerebras_tf.swarmx.heartbeats import job_folder
from modelzoo.common.data.token_cache import open_tokens
from tests.messages import raises

OTHER = 65534
ROOT = Path(__file__).resolve().parents[2]
TOKENS = np.arange(5, dtype=np.uint16)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def shared(tmp_path_factory):
    """A folder in which every user may write, like /tmp."""
    folder = tmp_path_factory.mktemp("shared")
    for each in (folder, *folder.parents[:-2]):  # pytest's own are closed
        if not each.stat().st_mode & 0o001:
            each.chmod(each.stat().st_mode | 0o011)
    folder.chmod(0o1777)
    return folder


def as_other(folder, command):
    """Runs a command of sh as another user in a folder."""
    changed = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
    subprocess.run(
        [*changed, "sh", "-euc", f"cd {shlex.quote(str(folder))}; {command}"], check=True
    )


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("mine")
    path.chmod(0o600)
    yield path
    assert path.read_text() == "mine"


def modes(folder):
    return {stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


@as_root
@pytest.mark.parametrize("name", [".lock", "checkpoint", "metrics.csv", "eval"])
def test_links_in_a_model_folder_are_not_followed(shared, victim, name):
    as_other(shared, f"mkdir run; chmod 777 run; ln -s {victim} run/{name}")
    with raises(ConfigError, str(shared / "run" / name)), locked_folder(str(shared / "run")):
        pass


@as_root
def test_pipes_in_a_model_folder_are_not_waited_for(shared):
    as_other(shared, "mkdir run; chmod 777 run; mkfifo run/.lock")
    with raises(ConfigError, ".lock"), locked_folder(str(shared / "run")):
        pass


@as_root
def test_tokens_of_others_are_not_read(shared):
    def tokens():
        return open_tokens(shared / "cache" / "0.tokens", [(TOKENS, 5)], TOKENS.dtype)[0].tolist()

    assert tokens() == TOKENS.tolist() and modes(shared / "cache") == {0o700, 0o600}
    file = shared / "cache" / "0.tokens"
    other = open_tokens(shared / "other", [(TOKENS + 1, 5)], TOKENS.dtype)[0]
    (shared / "cache").chmod(0o777)
    os.chown(shared / "other", OTHER, OTHER)
    os.replace(shared / "other", file)
    assert other.tolist() != tokens() == TOKENS.tolist()
    assert file.stat().st_uid == os.geteuid()


@as_root
def test_kernels_of_others_are_not_used(shared, victim):
    as_other(shared, f"mkdir -m 777 kernels; mkdir -m 755 own; ln -s {victim} kernel")
    assert cache_files.why_unusable(shared / "kernels") and cache_files.why_unusable(shared / "own")
    with pytest.warns(RuntimeWarning, match="kernel"):
        cache_files._warned.clear()
        assert cache_files.read(shared / "kernel") is None
    assert modes(shared / "kernels") == {0o777}


@as_root
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_of_a_run_are_for_its_user(shared, victim, umask):
    """Links with names of our folders are neither followed nor removed."""
    as_other(shared, f"mkdir memoryx-a memoryx-a/.lock; ln -s {victim.parent} memoryx-b")
    before = os.umask(umask)
    try:
        store = StoreFolder(shared)
        with job_folder(shared) as job:
            found = [stat.S_IMODE(each.stat().st_mode) for each in (store.path, job)]
    finally:
        os.umask(before)
    assert found == [0o700, 0o700]
    assert (shared / "memoryx-b").is_symlink() and (shared / "memoryx-a").is_dir()
    store.remove()


NAMES = ("modelzoo/__init__.py", "yaml.py", "numpy.py", "types.py", "cerebras_tf.py", "json.py")


@pytest.mark.tf
def test_modules_in_the_current_folder_do_not_run(tmp_path):
    """Also without HOME."""
    for module in NAMES:
        path = tmp_path / module
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({module!r})")
    started = ("modelzoo.commands.main", "configs", "list")
    dropped = ("HOME", "PYTHONPATH")
    variables = {key: value for key, value in os.environ.items() if key not in dropped}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "cerebras_tf" / "run_module.py"), *started],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and "gpt3_tiny" in ran.stdout, ran.stderr
    assert not (tmp_path / "ran").exists()
