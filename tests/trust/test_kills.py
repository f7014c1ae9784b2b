"""A command that is killed when it opens, renames, removes, links or syncs a file loses nothing.

Each kill is in a process that is forked from this one, at a seeded number of such a call; then the
command runs again. `CEREBRAS_TF_KILLS` sets another number of kills than 200.
"""

from __future__ import annotations

import os
import random
import signal
import sys

import pytest

pytest.importorskip("tensorflow")

import modelzoo.common.train.run  # noqa: F401  # loaded once, for all processes
from modelzoo.commands.main import main
from tests.reading import assert_same, variables_of

pytestmark = [pytest.mark.slow, pytest.mark.tf]
KILLS = int(os.environ.get("CEREBRAS_TF_KILLS", "200"))
TINY = [
    f"--set={each}"
    for each in (
        "runconfig.save_checkpoints_steps=2",
        "runconfig.keep_checkpoint_max=2",
        "runconfig.tf_random_seed=1",
        "model.num_hidden_layers=1",
        "model.hidden_size=32",
        "model.num_heads=2",
        "train_input.batch_size=2",
        "eval_input.batch_size=2",
    )
]
# {command: arguments}; each writes into the folder `out`.
TRAIN = ["train", "-p", "params_gpt3_tiny.yaml", "-o", "out", "--max_steps=4", *TINY]
COMMANDS = {
    "train": TRAIN,
    "train_and_eval": ["train_and_eval", *TRAIN[1:], "--eval_steps=1"],
    "files": [*TRAIN, "--set=runconfig.memoryx_dir=store"],
    "convert": ["convert", "renumber", "../train/out", "out", "9", "--overwrite"],
    "prepare": [
        *("prepare", "gpt", "--input_dir=text", "--tokenizer_type=ByteTokenizer"),
        *("--max_seq_length=32", "--output_dir=out", "--processes=1"),
    ],
}
EVENTS = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir")


def run(arguments, folder, number=None):
    """Runs a command in a process, killed at a call of a number; returns the calls made."""
    report = folder / ".." / "calls"
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        calls = 0

        def count():
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def audit(event, given):
            writes = event == "open" and given[0] and given[2] & (os.O_WRONLY | os.O_RDWR)
            if event in EVENTS or writes:
                count()

        fsync = os.fsync
        os.fsync = lambda file: (count(), fsync(file))[1]
        sys.addaudithook(audit)
        status = 1
        try:
            status = main(arguments) or 0
        except SystemExit as ended:
            status = ended.code or 0
        finally:
            report.write_text(str(calls))
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    was_killed = number is not None and status == -signal.SIGKILL
    assert was_killed or status == 0, (arguments, number, status)
    return 0 if was_killed else int(report.read_text())


def names_of(folder):
    """Names of the files in a folder, without locks, and events, named by the time."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if "tfevents" not in name and name != ".lock"}


def begin(folder):
    (folder / "text").mkdir(parents=True)
    (folder / "text" / "a.txt").write_text("To be, or not to be. " * 40)
    assert main(["configs", "copy", "gpt3_tiny", "-o", str(folder)]) in (0, None)


def test_a_kill_at_any_call_changes_no_bit_and_leaves_nothing(tmp_path, capfd):
    draws, killed = random.Random(0), 0
    plain, calls = {}, {}
    for name, arguments in COMMANDS.items():
        plain[name] = tmp_path / "plain" / name
        begin(plain[name])
        calls[name] = run(arguments, plain[name])
    for number in range(KILLS):
        name = draws.choice(list(COMMANDS))
        folder = tmp_path / f"kill_{number}" / name
        begin(folder)
        if name == "convert":
            (folder.parent / "train").symlink_to(plain["train"])
        at = draws.randint(1, calls[name])
        if run(COMMANDS[name], folder, at):  # fewer calls than before: kernels were in the cache
            continue
        killed += 1
        run(COMMANDS[name], folder)
        expected, found = plain[name] / "out", folder / "out"
        assert names_of(found) == names_of(expected), (name, at)
        if name == "prepare":
            for path in expected.rglob("*.tfrecords"):
                assert path.read_bytes() == (found / path.relative_to(expected)).read_bytes()
        else:
            assert_same(variables_of(found), variables_of(expected))
    with capfd.disabled():
        print(f"{killed} kills at {calls} calls")
