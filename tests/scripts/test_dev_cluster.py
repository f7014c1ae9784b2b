"""A Slurm of one's own: it takes no folder that holds something else, and removes none.

That jobs run through it is tested in tests/swarmx and tests/e2e, where CI has started one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.messages import names

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "dev_cluster"


def run(word, folder):
    return subprocess.run(
        [str(SCRIPT), word],
        env={**os.environ, "CEREBRAS_TF_DEV_CLUSTER": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(autouse=True)
def private(tmp_path):
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("word", ["start", "stop", "status"])
@pytest.mark.parametrize("place", ["open", "link", "owner"])
def test_a_folder_that_others_can_write_in_is_refused(word, place, tmp_path):
    folder = tmp_path / "cluster"
    (tmp_path / "target").mkdir(mode=0o700)
    if place == "link":
        folder.symlink_to(tmp_path / "target")
    else:
        folder.mkdir(mode=0o777 if place == "open" else 0o700)
        folder.chmod(0o777 if place == "open" else 0o700)
    if place == "owner":
        if os.getuid():
            pytest.skip("only root can give a folder away")
        os.chown(folder, 12345, 12345)
    (tmp_path / "private").write_text("kept")
    (folder / "slurm.conf").symlink_to(tmp_path / "private")
    (folder / ".dev_cluster").touch()
    done = run(word, folder)
    assert done.returncode == 2 and names(done.stderr, folder, "mode 700")
    assert (tmp_path / "private").read_text() == "kept" and (folder / ".dev_cluster").exists()


def test_a_folder_with_other_files_is_neither_used_nor_removed(tmp_path):
    (tmp_path / "mine").write_text("kept", encoding="utf-8")
    started = run("start", tmp_path)
    assert started.returncode == 2
    assert f"{tmp_path}: must be a folder of its own" in started.stderr
    run("stop", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_process_that_has_the_number_of_a_daemon_of_before_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / ".dev_cluster").touch()
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "run" / "slurmctld.pid").write_text(f"{other.pid}\n")
        assert run("status", tmp_path).returncode == 1
        assert run("stop", tmp_path).returncode == 0
        assert other.poll() is None
        other.kill()
    assert not tmp_path.exists()
