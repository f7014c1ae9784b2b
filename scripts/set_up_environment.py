"""Makes the virtual environment of a checkout: the packages of the lock file and the checkout.

    python set_up_environment.py ROOT VENV STAMP COMMAND [ARGUMENT ...]

Called by environment.sh with any suitable interpreter; needs the standard library only. When the
environment is complete, this process becomes the command: the launcher that asked. The stamp
is written last, so a set-up that was killed is done again, and a lock lets one of several that
start at once do the work while the others wait. Whether there is anything to do at all is not
decided by comparing packages: environment.sh compares stamps.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

STEP_S = 10.0  # between two lines of progress
POLL_S = 0.2
TAIL_LINES = 6
THIS_PYTHON = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
FULL_DISK = ("No space left on device", "Disk quota exceeded")
# What pip logs where the package index does not answer, and what to call it.
INDEX_FAILURES = {
    "Temporary failure in name resolution": "its name could not be resolved",
    "Name or service not known": "its name could not be resolved",
    "Failed to resolve": "its name could not be resolved",
    "NameResolutionError": "its name could not be resolved",
    "Network is unreachable": "the network is unreachable",
    "Connection refused": "the connection was refused",
    "Read timed out": "it did not answer in time",
    "ConnectTimeoutError": "it did not answer in time",
    "timed out": "it did not answer in time",
    "ProxyError": "the proxy failed",
    "SSLError": "its certificate could not be verified",
}


class SetUpError(Exception):
    """The environment cannot be made; the message says why, for the user to read."""


def report(text: str) -> None:
    """Prints one line on stderr, where it does not mix with the output of a user's command."""
    print(f"cerebras_tf: {text}", file=sys.stderr, flush=True)


@contextmanager
def only_one(path: Path) -> Iterator[IO[str]]:
    """Holds a file lock; waits until it is free. Yields the file, which is empty.

    Processes with this file as their stdin hold the lock, too. They may outlive this process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report("waiting for another set-up of the same environment")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def last_package(log: Path) -> str:
    """Returns the package that pip worked on last according to its log, or nothing."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if "Installing collected packages" in text:
        return "unpacking"
    found = re.findall(r"^(?:Collecting|Downloading) ([^\s;=<>/]+)", text, flags=re.MULTILINE)
    return str(found[-1]) if found else ""


def last_words(log: Path) -> str:
    """Returns the lines a reader of pip's log looks for first: its errors, else its end."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.strip().lower().startswith("error")]
    return "\n".join(f"    {line.strip()}" for line in (errors or lines)[-TAIL_LINES:])


def index_failure(log: Path) -> str:
    """Returns how the package index failed to answer according to pip's log, or nothing."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return next((why for words, why in INDEX_FAILURES.items() if words in text), "")


def full_disk(text: str) -> str:
    """Returns a message if the text has an error of a full disk, or nothing."""
    found = next((words for words in FULL_DISK if words in text), "")
    return found and (
        f"the environment could not be set up: the disk is full: {found}. Free space, or set "
        "CEREBRAS_TF_VENV to a folder on another disk (and TMPDIR, where pip unpacks), then run "
        "the same command again."
    )


def offline_failure(log: Path) -> str:
    """Returns what the folder of wheels lacks according to pip's log, or nothing."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.findall("No matching distribution found for (\\S+)", text)
    folder = os.environ.get("CEREBRAS_TF_OFFLINE")
    if not found or not folder:
        return ""
    return (
        f"--offline: the folder must have a wheel of {found[-1]} for {THIS_PYTHON} on "
        f"{os.uname().machine}. Received: {folder}, without it. Make the folder again with "
        f"`cerebras-tf bundle DIR` of this version of the project. The whole log is {log}."
    )


def other_hash(log: Path) -> str:
    """Returns a message if pip's log has a file with another hash than the lock's, or nothing."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"DO NOT MATCH THE HASHES.*\n\s*(\S+)", text)
    source = os.environ.get("CEREBRAS_TF_OFFLINE") or "the package index (pip config list)"
    if not found:
        return ""
    return (
        "every file must have a hash that scripts/requirements.lock lists. Received: another file "
        f"of {found[1]}. None was installed. Check {source}, or whether somebody replaced the "
        f"file; the whole log is {log}."
    )


def run_logged(command: list[str], lock: IO[str], log: Path, started: float) -> None:
    """Runs a command with its output in a log file, and logs its progress.

    The command holds the lock as long as it runs.

    Raises:
      SetUpError: the command failed; holds the end of the log.
    """
    environment = {
        # An index that is not there is tried for a minute, not for several.
        "PIP_RETRIES": "2",
        "PIP_DEFAULT_TIMEOUT": "20",
        **os.environ,
        "PIP_USER": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    if offline := os.environ.get("CEREBRAS_TF_OFFLINE"):
        # The environment takes precedence over pip.conf.
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": as_links(offline)}
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command, stdin=lock, stdout=output, stderr=output, env=environment
        )
        try:
            follow(process, log, started)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if not process.returncode:
        return
    text = log.read_text(encoding="utf-8", errors="replace")
    if why := full_disk(text) or other_hash(log) or offline_failure(log):
        raise SetUpError(why)
    if why := index_failure(log):
        raise SetUpError(
            f"the environment could not be set up: the package index did not answer: {why}. "
            f"The whole log is {log}. Check the network and the index (pip config list), then run "
            "the same command again. Without internet, set up from a folder of wheels: "
            "`cerebras-tf bundle DIR` makes it on another computer, and `scripts/set_up --offline "
            "DIR` uses it here."
        )
    source = offline or "the network and the package index (pip config list)"
    raise SetUpError(
        f"the environment could not be set up: pip ended with status {process.returncode}:\n"
        f"{last_words(log)}\n"
        f"The whole log is {log}. Check {source}, then run the same command again to go on."
    )


def follow(process: subprocess.Popen[bytes], log: Path, started: float) -> None:
    """Waits for a process, with a line of progress every STEP_S seconds."""
    next_line = started + STEP_S
    while True:
        try:
            process.wait(timeout=POLL_S)
            return
        except subprocess.TimeoutExpired:
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + STEP_S
                slow = "the package index is slow" if index_failure(log) else last_package(log)
                report(f"  {time.monotonic() - started:.0f} s  {slow}".rstrip())


def pip_of(environment: Path, lock: IO[str]) -> list[str]:
    """Creates the environment if none works, and returns the command line of its pip.

    Raises:
      SetUpError: this interpreter can make no environment.
    """
    python = environment / "bin" / "python"
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    probe = [str(python), "-I", "-c", "import pip" if has_ensurepip else "import sys"]
    works = python.exists() and not subprocess.run(probe, capture_output=True).returncode
    if not works:
        try:
            for stale in python.parent.glob("python*"):
                stale.unlink()
            options = ["--symlinks", *([] if has_ensurepip else ["--without-pip"])]
            command = [sys.executable, "-I", "-m", "venv", *options, str(environment)]
            subprocess.run(command, stdin=lock, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            output = "".join(getattr(error, name, "") for name in ("stdout", "stderr"))
            raise SetUpError(
                full_disk(f"{error} {output}")
                or f"{sys.executable} cannot make a virtual environment in {environment}: {error}. "
                "Set CEREBRAS_TF_VENV to a folder where it can, or use another Python."
            ) from error
    if has_ensurepip:
        return [str(python), "-I", "-m", "pip"]
    return [sys.executable, "-I", "-m", "pip", "--python", str(python)]


def as_links(folder: str) -> str:
    """Returns a folder as pip's option find-links, which pip splits at white space."""
    return Path(folder).resolve().as_uri()


def use_wheels(environment: Path) -> None:
    """Makes the environment's pip use the folder of CEREBRAS_TF_OFFLINE and no package index.

    Raises:
      SetUpError: the folder has no wheels.
    """
    settings = environment / "pip.conf"
    folder = os.environ.get("CEREBRAS_TF_OFFLINE")
    if not folder:
        settings.unlink(missing_ok=True)
        return
    wheels = [path.name for path in Path(folder).glob("*.whl")]
    if not wheels:
        raise SetUpError(
            f"--offline: the folder must have the wheels that `cerebras-tf bundle` writes. "
            f"Received: {folder}, without any."
        )
    tags = {tag for name in wheels for tag in re.findall(r"-cp3(\d+)-cp3\1-", name)}
    if tags and str(sys.version_info[1]) not in tags:
        raise SetUpError(
            f"--offline: the Python must be the one that the wheels are for. Received: "
            f"{THIS_PYTHON}, {sys.executable}, and in {folder} wheels for "
            f"{', '.join(f'Python 3.{tag}' for tag in sorted(tags, key=int))}. Set "
            "CEREBRAS_TF_PYTHON to such a Python, or make the folder with this one."
        )
    settings.write_text(f"[global]\nno-index = true\nfind-links = {as_links(folder)}\n", "utf-8")


def tensorflow_of(lock: Path) -> str:
    """Returns a few words on the release of TensorFlow that this Python gets."""
    python = f'python_version == "{sys.version_info[0]}.{sys.version_info[1]}"'
    found = re.findall(r"^tensorflow-cpu==(\S+?);(.*)$", lock.read_text("utf-8"), re.MULTILINE)
    versions = [version for version, marker in found if python in marker]
    return f"TensorFlow {versions[0]} among them" if versions else "TensorFlow among them"


def set_up(root: Path, environment: Path, stamp: str) -> None:
    """Installs the locked packages and the checkout, and stamps the environment as complete."""
    started = time.monotonic()
    complete = environment / ".complete"
    with only_one(environment / ".lock") as held:
        if complete.exists() and complete.read_text(encoding="utf-8") == stamp:
            return
        complete.unlink(missing_ok=True)
        report(f"setting up {environment} with {THIS_PYTHON}; this happens once")
        pip = pip_of(environment, held)
        log = environment / "set_up.log"
        log.write_text("", encoding="utf-8")
        use_wheels(environment)
        lock = root / "scripts" / "requirements.lock"
        report(f"installing the packages of scripts/requirements.lock, {tensorflow_of(lock)}")
        # The lock has all packages. tf_keras requires the distribution tensorflow, whose place
        # tensorflow-cpu takes.
        options = ["--require-hashes", "--no-deps", "--requirement", str(lock)]
        run_logged([*pip, "install", *options], held, log, started)
        editable = ["--no-deps", "--no-build-isolation", "--editable", str(root)]
        run_logged([*pip, "install", *editable], held, log, started)
        complete.write_text(stamp, encoding="utf-8")
        report(f"environment ready in {time.monotonic() - started:.0f} s")


def main(root: str, environment: str, stamp: str) -> int:
    """Sets up; returns the exit status, 2 with one paragraph on stderr where it cannot."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        set_up(Path(root), Path(environment), stamp)
    except SetUpError as error:
        report(str(error))
        return 2
    except OSError as error:
        report(
            full_disk(str(error))
            or f"{environment}: the environment cannot be written there: {error}. "
            "Set CEREBRAS_TF_VENV to a folder that can be written."
        )
        return 2
    except (KeyboardInterrupt, SystemExit) as error:
        report("set-up interrupted; run the same command again to go on")
        return getattr(error, "code", 128 + signal.SIGINT)
    return 0


if __name__ == "__main__":
    status = main(*sys.argv[1:4])
    if status == 0:
        os.execv(sys.argv[4], sys.argv[4:])
    sys.exit(status)
