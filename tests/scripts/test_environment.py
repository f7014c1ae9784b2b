"""environment.sh and set_up_environment.py: which Python is taken, what is said, what is kept."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# A Python that the launchers take for a suitable one; set_up_environment.py is "run" by making
# an environment in a moment. It is called as: python -I SCRIPT ROOT VENV STAMP COMMAND ...
SUITABLE = """#!/bin/bash
[ "$2" = -c ] && exit 0
echo "set up with $(basename "$0")" >&2
mkdir -p "$4/bin"
printf '#!/bin/bash\\nprintf "%%s," "$@"\\n' >"$4/bin/python"
chmod +x "$4/bin/python"
printf '%s' "$5" >"$4/.complete"
exec "${@:6}"
"""
UNSUITABLE = "#!/bin/bash\nexit 1\n"


@pytest.fixture
def set_up_environment():
    """The set-up script as a module."""
    spec = importlib.util.spec_from_file_location(
        "set_up_environment", SCRIPTS / "set_up_environment.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def add_program(folder: Path, name: str, text: str) -> None:
    """Puts a program into a folder of PATH."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def add_tools(folder: Path) -> None:
    """Puts into a folder of PATH what the pretended set-up uses."""
    for name in ("mkdir", "chmod"):
        (folder / name).symlink_to(f"/bin/{name}")


def test_no_python_is_one_sentence_and_status_2(launchers, programs):
    ran = launchers.run("csrun_wse", "python-ws", "x.py", PATH=str(programs))
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert "needs Python 3.10 to 3.13" in ran.stderr


def test_pythons_that_do_not_start_or_are_too_new_count_as_none(launchers, programs):
    for name in ("python3.13", "python3.12", "python3.11", "python3.10", "python3"):
        add_program(programs, name, UNSUITABLE)
    ran = launchers.run("python-ws", "x.py", PATH=str(programs))
    assert ran.returncode == 2
    assert "none was found" in ran.stderr


def test_a_broken_shim_does_not_hide_the_python_behind_it(launchers, programs, tmp_path):
    shims = tmp_path / "shims"
    shims.mkdir()
    add_program(shims, "python3.11", UNSUITABLE)
    add_program(programs, "python3.11", SUITABLE)
    add_tools(programs)
    ran = launchers.run("python-ws", "x.py", PATH=f"{shims}:{programs}")
    assert (ran.returncode, ran.stdout) == (0, "x.py,")


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        (("python3.10", "python3"), "python3.10"),
        (("python3.11", "python3.12"), "python3.12"),
        (("python3.11", "python3.13", "python3"), "python3.13"),
        (("python3",), "python3"),
    ],
)
def test_newest_supported_python_is_taken(launchers, programs, found, taken):
    for name in found:
        add_program(programs, name, SUITABLE)
    add_tools(programs)
    ran = launchers.run("python-ws", "x.py", PATH=str(programs))
    assert ran.stderr == f"set up with {taken}\n"


@pytest.mark.parametrize("place", ["pyenv/versions/3.13.0/bin", "conda/envs/py313/bin"])
def test_pythons_of_pyenv_and_conda_are_found_where_path_has_an_older_one(
    launchers, programs, tmp_path, place
):
    (tmp_path / place).mkdir(parents=True)
    add_program(tmp_path / place, "python3.13", SUITABLE)
    add_program(programs, "python3.12", SUITABLE)
    add_tools(programs)
    ran = launchers.run("python-ws", "x.py", PATH=str(programs))
    assert ran.stderr == "set up with python3.13\n"


def test_a_python_that_is_asked_for_is_taken_or_refused(launchers, programs):
    for name in ("python3.13", "python3.11"):
        add_program(programs, name, SUITABLE)
    add_tools(programs)
    path = {"PATH": str(programs)}
    ran = launchers.run("python-ws", "x.py", CEREBRAS_TF_PYTHON="python3.99", **path)
    assert ran.returncode == 2 and "Received: python3.99, which does not start." in ran.stderr
    ran = launchers.run("python-ws", "x.py", CEREBRAS_TF_PYTHON="python3.11", **path)
    assert ran.stderr == "set up with python3.11\n"


def test_uv_is_asked_for_a_python_when_there_is_none(launchers, programs):
    hidden = programs / "hidden"
    hidden.mkdir()
    add_program(hidden, "cpython", SUITABLE)
    uv = f'#!/bin/bash\n[ "$2" = find ] && echo "{hidden}/cpython"\nexit 0\n'
    add_program(programs, "uv", uv)
    add_tools(programs)
    ran = launchers.run("python-ws", "x.py", PATH=str(programs))
    assert ran.stderr.splitlines()[-1] == "set up with cpython"
    assert (ran.returncode, ran.stdout) == (0, "x.py,")


def test_the_command_keeps_its_arguments_across_a_set_up(launchers, programs):
    add_program(programs, "python3.11", SUITABLE)
    add_tools(programs)
    ran = launchers.run("csrun_wse", "python-ws", "x.py", "two words", "", PATH=str(programs))
    assert ran.stdout == "x.py,two words,,"


def test_second_start_sets_up_nothing_and_says_nothing(launchers, programs):
    add_program(programs, "python3.11", SUITABLE)
    add_tools(programs)
    first = launchers.run("python-ws", "x.py", PATH=str(programs))
    assert first.stderr == "set up with python3.11\n"
    # Without any Python on PATH the second start could not set up even if it wanted to.
    (programs / "python3.11").unlink()
    second = launchers.run("python-ws", "x.py", PATH=str(programs))
    assert (second.returncode, second.stdout, second.stderr) == (0, "x.py,", "")


def test_an_environment_of_another_lock_file_is_brought_up_to_date(launchers, programs):
    add_program(programs, "python3.11", SUITABLE)
    add_tools(programs)
    launchers.complete(UNSUITABLE)
    (launchers.venv / ".complete").write_text("1 2 elsewhere", encoding="utf-8")
    ran = launchers.run("python-ws", "x.py", PATH=str(programs))
    assert ran.stderr == "set up with python3.11\n"


def test_status_of_a_failed_set_up_is_passed_on(launchers, programs):
    add_program(programs, "python3.11", '#!/bin/bash\n[ "$2" = -c ] && exit 0\nexit 130\n')
    assert launchers.run("python-ws", "x.py", PATH=str(programs)).returncode == 130


def run_set_up(folder: Path, environment: Path, lock: str, **variables: str):
    """Runs the real set-up on a checkout in miniature with the given lock file, off line."""
    root = folder / "checkout"
    (root / "scripts").mkdir(parents=True, exist_ok=True)
    (root / "scripts" / "requirements.lock").write_text(lock, encoding="utf-8")
    command = [sys.executable, "-I", str(SCRIPTS / "set_up_environment.py")]
    return subprocess.run(
        [*command, str(root), str(environment), "the stamp", "/bin/echo", "the command"],
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment that the first set-up creates, for those that get as far as pip."""
    return tmp_path_factory.mktemp("environment")


def test_failing_pip_gives_its_last_words_the_log_and_status_2_and_no_stamp(tmp_path, environment):
    (environment / ".complete").write_text("an older stamp", encoding="utf-8")
    ran = run_set_up(tmp_path, environment, f"no-such-package==1.0 {hash_of(b'')}\n")
    log = environment / "set_up.log"
    assert ran.returncode == 2
    assert str(log) in ran.stderr
    assert "no-such-package==1.0" in ran.stderr
    assert "no-such-package==1.0" in log.read_text(encoding="utf-8")
    assert not (environment / ".complete").exists()


def test_an_index_that_does_not_answer_is_one_paragraph(tmp_path, environment):
    index = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    ran = run_set_up(tmp_path, environment, f"no-such-package==1.0 {hash_of(b'')}\n", **index)
    assert ran.returncode == 2
    last = ran.stderr.splitlines()[-1]
    assert "the package index did not answer: the connection was refused" in last
    assert "scripts/set_up --offline DIR" in last


def hash_of(content: bytes) -> str:
    """An option of a line in a lock file."""
    return f"--hash=sha256:{hashlib.sha256(content).hexdigest()}"


def add_wheel(folder: Path, tag: str) -> str:
    """Writes a wheel of the package empty-package 1.0; returns its hash for a lock file."""
    about = "empty_package-1.0.dist-info"
    with zipfile.ZipFile(folder / f"empty_package-1.0-{tag}.whl", "w") as wheel:
        wheel.writestr("empty_package.py", "")
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: empty-package\nVersion: 1.0"
        )
        wheel.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}")
        wheel.writestr(f"{about}/RECORD", "")
    return hash_of(Path(wheel.filename).read_bytes())


@pytest.mark.parametrize(
    ("tag", "lock", "facts"),
    [
        ("py3-none-any", f"empty-package==1.0 --hash=sha256:{64 * '0'}", ["another file of empty"]),
        # Only the checkout in miniature cannot be installed: it has no setup.py.
        ("py3-none-any", "empty-package==1.0", ["setup.py"]),
        ("py3-none-any", "absent-package==2.0", ["a wheel of absent-package==2.0 for Python 3."]),
        ("cp39-cp39-linux_x86_64", "empty-package==1.0", ["Python 3.9", "CEREBRAS_TF_PYTHON"]),
        ("", "empty-package==1.0", ["without any."]),
    ],
)
def test_a_folder_of_wheels_serves_without_an_index(tag, lock, facts, tmp_path, environment):
    wheels = tmp_path / "wh eels%20#"
    wheels.mkdir()
    digest = add_wheel(wheels, tag) if tag else hash_of(b"")
    lock += "" if "--hash" in lock else f" {digest}"
    index = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    ran = run_set_up(tmp_path, environment, lock, CEREBRAS_TF_OFFLINE=str(wheels), **index)
    assert ran.returncode == 2 and str(wheels) in ran.stderr
    assert all(fact in ran.stderr for fact in facts), ran.stderr
    assert "network" not in ran.stderr and "index" not in ran.stderr
    if "setup.py" in facts:
        log = (environment / "set_up.log").read_text(encoding="utf-8")
        assert "Successfully installed empty-package-1.0" in log


# A pip that runs until it is killed, or whose disk is full.
SLOW = "import os, time; print('slow pip', os.getpid(), flush=True); time.sleep(100)"
FULL = "print('ERROR: [Errno 28] No space left on device'); exit(1)"


@pytest.fixture
def start_set_up(tmp_path):
    """Starts the set-up of an environment whose pip is a program of the test."""
    environment = tmp_path / "venv"
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "requirements.lock").write_text("")
    command = [sys.executable, "-I", str(SCRIPTS / "set_up_environment.py"), str(tmp_path)]

    def start(pip):
        python = environment / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        add_program(python.parent, "python", PROBED.format(python=sys.executable, pip=pip))
        return subprocess.Popen(
            [*command, str(environment), "the stamp", "/bin/true"],
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


# Is asked first whether pip can be imported.
PROBED = """#!/bin/bash
[ "$2" = -c ] && exit 0
exec {python} -c "{pip}"
"""


def wait_for_pip(folder: Path) -> int:
    """The process number of a slow pip, once it runs."""
    for _ in range(200):
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((folder / "venv" / "set_up.log").read_text().split()[2])
        time.sleep(0.1)
    raise AssertionError("pip was not started")


def test_a_full_disk_is_stated_with_the_remedy(start_set_up):
    _, errors = start_set_up(FULL).communicate(timeout=60)
    assert "No space left" in errors and "CEREBRAS_TF_VENV" in errors and "network" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_set_up_ends_with_a_line(number, start_set_up, tmp_path):
    started = start_set_up(SLOW)
    pip = wait_for_pip(tmp_path)
    started.send_signal(number)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 128 + number
    assert errors.endswith("set-up interrupted; run the same command again to go on\n")
    with pytest.raises(ProcessLookupError):
        os.kill(pip, 0)


def test_a_set_up_waits_for_the_pip_of_one_that_was_killed(start_set_up, tmp_path):
    killed = start_set_up(SLOW)
    pip = wait_for_pip(tmp_path)
    killed.kill()
    killed.communicate(timeout=60)
    second = start_set_up(FULL)
    assert second.stderr.readline().startswith("cerebras_tf: waiting for another set-up")
    os.kill(pip, signal.SIGKILL)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 2 and "No space left" in errors


def test_set_up_refuses_what_is_no_folder_of_wheels(launchers, tmp_path):
    ran = launchers.run("set_up", "--offline", str(tmp_path / "nothing"))
    assert ran.returncode == 2 and "--offline: must be a folder of wheels." in ran.stderr


def test_a_place_that_cannot_be_written_is_named_with_the_remedy(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    ran = run_set_up(tmp_path, blocked / "venv", "")
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "Set CEREBRAS_TF_VENV to a folder that can be written." in ran.stderr


def test_an_environment_that_another_set_up_completed_meanwhile_is_left_alone(tmp_path):
    environment = tmp_path / "venv"
    environment.mkdir()
    (environment / ".complete").write_text("the stamp", encoding="utf-8")
    ran = run_set_up(tmp_path, environment, f"no-such-package==1.0 {hash_of(b'')}\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "the command\n", "")


def test_of_two_set_ups_at_once_one_waits_and_has_nothing_left_to_do(tmp_path):
    environment = tmp_path / "venv"
    environment.mkdir()
    command = [sys.executable, "-I", str(SCRIPTS / "set_up_environment.py"), str(tmp_path)]
    with open(environment / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [*command, str(environment), "the stamp", "/bin/true"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert second.stderr is not None
        first_line = second.stderr.readline()
        assert first_line == "cerebras_tf: waiting for another set-up of the same environment\n"
        (environment / ".complete").write_text("the stamp", encoding="utf-8")
    _, rest = second.communicate(timeout=60)
    assert (second.returncode, rest) == (0, "")


def test_progress_names_the_package_pip_is_busy_with(set_up_environment, tmp_path):
    log = tmp_path / "log"
    log.write_text("Collecting absl-py==2.5.1\n  Downloading absl\nCollecting numpy==1.26.4 (x)\n")
    assert set_up_environment.last_package(log) == "numpy"
    log.write_text("Collecting numpy==1.26.4\nInstalling collected packages: numpy\n")
    assert set_up_environment.last_package(log) == "unpacking"
