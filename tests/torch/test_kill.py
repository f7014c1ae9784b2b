"""A run of `fit` that is killed at any instant resumes with the same bits and leaves no files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from torch.utils.data import DataLoader, Dataset

from tests.torch.test_fit import CLASSES, bits, run

ROOT = Path(__file__).parents[2]


class Noisy(Dataset):
    """Rows that a random number of the worker changes."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        ids = (torch.arange(5) * (index + 1) + torch.randint(3, ())) % 23
        return ids, ids % CLASSES


def train(folder, seed=0):
    """Trains with two worker processes; returns all bits at the end."""
    torch.manual_seed(seed)
    loader = DataLoader(Noisy(), 6, shuffle=True, num_workers=2)
    model, optimizer, _ = run(9, 0.3, loader=loader, model_dir=folder, save_every=2, keep=2)
    return [tensor.tolist() for tensor in bits(model, optimizer)]


# Runs in a child that is killed at each instant of a group, then in one that is not.
KILLED = """
import os, shutil, signal, sys, threading, time
sys.modules["tensorflow"] = None
sys.path.insert(0, {root!r})
from pathlib import Path
from cerebras_tf.torch_step import checkpoint, training
from tests.torch.test_kill import train

CALLS = {{
    "step": (training.TorchTraining, "step"),
    "tensor": (checkpoint, "reading"),
    "fsync": (os, "fsync"),
    "rename": (Path, "rename"),
    "rmtree": (shutil, "rmtree"),
}}

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def kill_at(call, count):
    owner, name = CALLS[call.replace("renamed", "rename")]
    original, calls, own = getattr(owner, name), [], os.getpid()
    def replaced(*args, **keys):
        if os.getpid() == own:  # not in a worker process
            calls.append(name)
        due = os.getpid() == own and len(calls) == count
        if due and call != "renamed":
            kill()
        found = original(*args, **keys)
        if due:
            kill()
        return found
    setattr(owner, name, replaced)

def child(folder, instant=None):
    pid = os.fork()
    if not pid:
        os.setsid()
        if instant and instant[0] == "time":
            threading.Timer(instant[1] * seconds, kill).start()
        elif instant:
            kill_at(*instant)
        Path(folder + ".bits").write_text(repr(train(folder, seed=0 if not instant else 7)))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    groups.append(pid)
    return status

groups, seconds = [], 0.0
for name in ("/whole", "/again"):  # kernels are loaded by the first
    start = time.monotonic()
    assert child({folder!r} + name) == 0
    seconds = time.monotonic() - start
whole = Path({folder!r} + "/whole.bits").read_text()
for number, group in enumerate({groups!r}):
    folder = {folder!r} + f"/{{number}}"
    for instant in group:
        assert os.WIFSIGNALED(child(folder, instant)), instant
        print(instant, sorted(p.name for p in Path(folder).glob("*step-*")), flush=True)
    assert child(folder) == 0
    assert Path(folder + ".bits").read_text() == whole, group
    left = {{p.name for p in Path(folder).iterdir() if not p.name.startswith("events")}}
    assert left == {{".lock", "step-000008", "step-000009"}}, left
end = time.monotonic() + 30
while groups and time.monotonic() < end:
    for group in list(groups):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            groups.remove(group)
    time.sleep(0.1)
assert not groups, "worker processes are left"
"""
# A call and how many times it has been called; "renamed" is after the call. Or a part of the time.
FEW = [("step", 2), ("tensor", 30), ("fsync", 4), ("renamed", 1), ("rmtree", 1), ("time", 0.5)]
MANY = [
    *(("step", count) for count in (1, 4, 9)),
    *(("tensor", count) for count in (1, 20, 45, 100)),
    *(("fsync", count) for count in (1, 3, 7, 17)),
    *(("rename", count) for count in (1, 4)),
    *(("renamed", count) for count in (2, 3)),
    ("rmtree", 2),
    *(("time", part) for part in (0.3, 0.5, 0.65, 0.8)),
]


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([FEW], id="sequence"),
        pytest.param([[each] for each in MANY], id="twenty", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_with_the_same_bits_without_tensorflow(groups, tmp_path):
    code = KILLED.format(root=str(ROOT), folder=str(tmp_path), groups=groups)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("\n") == sum(map(len, groups))
