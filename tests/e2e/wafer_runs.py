"""Runs a user's script on several wafers, and reads what it printed and wrote."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

from tests.e2e.wafer_script import main
from tests.reading import variables_of
from tests.swarmx.ranks import ROOT

SCRIPT = ROOT / "tests" / "e2e" / "wafer_script.py"
BATCH, STEPS = 8, 24
LIMIT_S = 180


def command(wafers, folder, steps=STEPS, *options):
    script = [sys.executable, SCRIPT, folder, BATCH // wafers, steps]
    if wafers > 1:
        launch = [sys.executable, "-m", "cerebras_tf.swarmx.launch", "--wafers", wafers]
        script = [*launch, "--logs", folder / "logs", *options, "--", *script]
    return [str(word) for word in script]


def environment(**given):
    local = "/none"  # local processes, also where Slurm is installed
    ours = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "SLURM_CONF": local}
    return {**os.environ, **ours, **given}


def alone(folder, steps=STEPS, **given):
    """Runs the script on one wafer to its end, in this process; what it printed."""
    folder.mkdir(exist_ok=True)
    with mock.patch.dict(os.environ, given), contextlib.redirect_stdout(io.StringIO()) as out:
        main(str(folder), BATCH, steps)
    return out.getvalue()


def run(wafers, folder, steps=STEPS, *options, **given):
    """Runs the script to its end; (exit status, what it printed)."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        command(wafers, folder, steps, *options),
        env=environment(**given),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done


def printed(text, word):
    """What the script printed after a word."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{word} ")]
    return json.loads(line.partition(" ")[2])


def losses(text):
    lines = [line.split() for line in text.splitlines() if line.startswith("LOSS ")]
    return {int(step): float(loss) for _, step, loss in lines}


def variables(folder, step):
    return variables_of(folder / f"model.ckpt-{step}")


def start(folder, steps, *options):
    """The script on two wafers; returns when it has made some steps."""
    folder.mkdir(exist_ok=True)
    out = open(folder / "out", "w", encoding="utf-8")  # noqa: SIM115 - the process's own
    process = subprocess.Popen(
        command(2, folder, steps, *options),
        env=environment(),
        cwd=folder,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + LIMIT_S
    while len(losses((folder / "out").read_text(encoding="utf-8"))) < 15:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    return process


def process_of(folder, rank):
    """Number of the process that runs the script on one wafer."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            given = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        mine = str(folder).encode() in words and f"CEREBRAS_TF_RANK={rank}".encode() in given
        if mine and b"cerebras_tf.swarmx.rank" not in words:
            return int(path.name)
    raise AssertionError(f"no process of rank {rank}")
