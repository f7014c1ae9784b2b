"""All pairs of writers and readers on one folder: the second is refused, or as without the first.

A writer holds the lock of the folder whenever it renames or removes a file there. So it is enough
that each command is refused, or unchanged, where another process holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil

import pytest
import yaml

pytestmark = [pytest.mark.tf, pytest.mark.slow]
pytest.importorskip("tensorflow")

from cerebras_tf.cli.exit_codes import run_main
from modelzoo.commands.main import run_command
from tests.estimator.regression import build, dataset
from tests.trust.bad_files import ROOT

MODEL = "-p params.yaml -o run"
SHORT = "--eval_steps 1"
# By name: the command, and whether it writes in the folder `run`, `records` or `hugging`.
COMMANDS = {
    "train": (f"train {MODEL} --max_steps 4", "run"),
    "train_and_eval": (f"train_and_eval {MODEL} --max_steps 4 {SHORT}", "run"),
    "eval": (f"eval {MODEL} {SHORT}", ""),
    "eval_all": (f"eval_all {MODEL} {SHORT}", ""),
    "generate": ("generate -o run --prompt to --max_new_tokens 3 --temperature 0", ""),
    "convert to_tf": ("convert to_tf hugging run --overwrite", "run"),
    "convert from_tf": ("convert from_tf run/model.ckpt-2 hugging --overwrite", "hugging"),
    "convert renumber": ("convert renumber run/model.ckpt-2 run 7 --overwrite", "run"),
    "convert random": ("convert random hugging -p params.yaml --overwrite", "hugging"),
    "convert verify": ("convert verify hugging run/model.ckpt-2", ""),
    "prepare": (
        "prepare gpt --input_dir text --tokenizer_type ByteTokenizer --max_seq_length 8 "
        "--output_dir records",
        "records",
    ),
    "estimator": (None, "run"),
    "fit": (None, "run"),
}
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 32}


def estimator():
    build("run").train(dataset, max_steps=1)


def fit():
    pytest.importorskip("torch")
    from tests.torch.test_fit import run

    run(steps=2, model_dir="run", num_threads=1)


PROGRAMS = {"estimator": estimator, "fit": fit}


def start(name):
    """Runs a command; returns its status and what it shows."""
    argv, shown = COMMANDS[name][0], io.StringIO()

    def program(*_):
        PROGRAMS[name]()

    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = run_main(run_command if argv else program, argv.split() if argv else [], "x")
    return code, " ".join(shown.getvalue().split())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of a training, with its model in the format of Hugging Face."""
    folder = tmp_path_factory.mktemp("trained")
    params = yaml.safe_load((ROOT / "configs/params_gpt3_tiny.yaml").read_text())
    params["model"].update(SIZES, max_position_embeddings=32)
    params["train_input"].update(batch_size=2, max_sequence_length=32)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("to be or not to be\n" * 20)
    before = os.getcwd()
    os.chdir(folder)
    try:
        run = run_main(run_command, f"train {MODEL} --max_steps 2".split(), "x")
        converted = run_main(run_command, ["convert", "from_tf", "run", "hugging"], "x")
    finally:
        os.chdir(before)
    assert (run, converted) == (0, 0)
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    if "records" not in os.listdir():
        os.mkdir("records")
    return tmp_path / "copy"


@contextlib.contextmanager
def opened(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def clean_for(name):
    """A training of another kind needs an empty folder."""
    if name in PROGRAMS:
        shutil.rmtree("run")
        os.mkdir("run")


@pytest.mark.parametrize("name", COMMANDS)
def test_with_a_locked_folder(folder, name):
    clean_for(name)
    with contextlib.ExitStack() as held:
        for each in ("run", "hugging"):
            file = held.enter_context(open(folder / each / ".lock", "w"))
            file.write("123\n")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.flock(held.enter_context(opened(folder / "records")), fcntl.LOCK_EX)
        before = content(folder)
        code, shown = start(name)
        if COMMANDS[name][1]:
            holder = "process 123" if name != "prepare" else "another preparation"
            assert (code, holder in shown) == (2, True), shown
            assert content(folder) == before
            return
    alone = start(name)
    assert (code, code) == (alone[0], 0), (shown, alone)
    if name in ("generate", "convert verify"):
        assert shown == alone[1]


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name][1]])
def test_a_writer_holds_the_lock_when_it_writes(folder, name, monkeypatch):
    clean_for(name)
    target, wrote = folder / COMMANDS[name][1], []

    def checked(function):
        def call(*paths, **keys):
            names = [os.path.abspath(path) for path in paths if not isinstance(path, int)]
            inside = any(os.path.dirname(path) == str(target) for path in names)
            if inside and not names[-1].endswith("/.lock"):
                wrote.append(names[-1])
                locked = target if name == "prepare" else target / ".lock"
                with opened(locked) as file, pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return function(*paths, **keys)

        return call

    for each in ("rename", "replace", "unlink", "remove", "link", "mkdir"):
        monkeypatch.setattr(os, each, checked(getattr(os, each)))
    code, shown = start(name)
    assert code == 0 and wrote, shown
