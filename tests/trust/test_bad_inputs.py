"""Seeded bad inputs over the files, the keys, the flags and the variables that the project reads.

Every one is refused with an error of the package, or read as what it says. Nothing ends with a
traceback, waits, reads damaged numbers as good ones, or changes another file.
"""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import zlib

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")
pytest.importorskip("tokenizers")

from cerebras_tf.cli.exit_codes import run_main
from cerebras_tf.environment import FOR_USERS, SET_BY_LAUNCHERS
from cerebras_tf.errors import CerebrasError
from modelzoo.commands.main import run_command
from modelzoo.common.config.params import load_params
from tests.trust.bad_files import FILES, ROOT
from tests.trust.mutations import ODD, TEXTS, changed_value, damage, places_of

SECONDS = 20
NEEDS = {"pytorch_model.bin": "torch", "a.h5": "h5py"}


@pytest.fixture(autouse=True)
def limited_memory():
    """A reader that takes all memory fails, and not the computer."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/status", encoding="ascii") as lines:
        used = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, ((used << 10) + (3 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@contextlib.contextmanager
def within(what):
    """Ends a hang, and names the case in any failure."""

    def end(*_):
        raise AssertionError(f"no end within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    except CerebrasError:
        pass
    except OSError as error:  # which commands report for its path
        assert error.errno and error.filename, what
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def content(folder):
    return {
        path: (path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


def damaged_files(tmp_path, name, count, seed):
    pytest.importorskip(NEEDS.get(name, "numpy"))
    make, read, has_checksums = FILES[name]
    chance = random.Random(zlib.crc32(name.encode()) + seed)
    for number in range(count):
        path = tmp_path / str(number) / name
        path.parent.mkdir(parents=True)
        make(path)
        wanted = read(path)
        what = damage(path, chance)
        before = content(tmp_path)
        with within((name, number, what)):
            found = read(path)
            if has_checksums:
                np.testing.assert_equal(found, wanted)
        assert content(tmp_path) == before, what


@pytest.mark.parametrize("name", FILES)
def test_damaged_files(tmp_path, name):
    damaged_files(tmp_path, name, 7, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_many_damaged_files(tmp_path, name):
    damaged_files(tmp_path, name, 60, 1)


def odd_params(tmp_path, count, seed):
    chance = random.Random(seed)
    tree = yaml.safe_load((ROOT / "configs/params_gpt3_tiny.yaml").read_text())
    places, path = list(places_of(tree)), tmp_path / "params.yaml"
    for number in range(count):
        changed, what = changed_value(tree, chance, places)
        try:
            text = yaml.dump(changed, Dumper=yaml.SafeDumper)
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
        except (yaml.YAMLError, TypeError):
            continue
        with within((number, what)):
            load_params(path)
        key = ".".join(map(str, chance.choice(places)))
        with within((number, key)):
            load_params(path, settings=[(key, str(chance.choice(ODD)))])


def test_odd_values_of_keys(tmp_path):
    odd_params(tmp_path, 40, 0)


@pytest.mark.slow
def test_many_odd_values_of_keys(tmp_path):
    odd_params(tmp_path, 400, 1)


# Arguments of commands that run in this process and end at once; X is an odd value.
COMMANDS = (
    "X",
    "compare X X",
    "compare report.html report.html --out X",
    "run X --inputs X",
    "run program.zip --inputs X",
    "run program.zip --inputs X --steps X",
    "run program.zip --checkpoint X --inputs features.npz",
    "run program.zip --inputs features.npz --outputs X",
    "configs list X",
    "configs copy X",
    "configs copy gpt3_tiny X",
    "report --hidden_size X",
    "report --num_csx X --batch_size X",
    "train -p X",
    "train -p params.yaml -o X --max_steps X",
    "train -p params.yaml --set X",
    "train -p params.yaml --set runconfig.cs_ip=X",
    "train -p params.yaml --set runconfig.model_dir=X --max_steps X",
    "train -p params.yaml -o X --cs_ip X --device X",
    "eval -p params.yaml -o X --checkpoint_path X",
    "generate -p X -o X",
    "convert to_tf X -o X",
    "convert from_tf X -o X",
    "convert verify X X",
    "convert renumber X -o X",
    "prepare gpt X --output_dir X",
    "prepare vocab X --output X",
    "prepare squad X --vocab_file X --output_dir X",
    "scaling plan --flop X",
    "scaling fit X",
)
VALUES = tuple(text for text in TEXTS if text and "\0" not in text and "\ud800" not in text)
VALUES += (
    "-1",
    "0",
    "1e999",
    "nan",
    "9" * 30,
    "cs.example:99999",
    "[::1",
    "a..b",
    "\udcff",
    "gone/x",
)


def odd_commands(tmp_path, monkeypatch, capsys, count, seed):
    chance = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    for name in ("report.html", "program.zip", "features.npz", "params.yaml"):
        FILES[name][0](tmp_path / name)
    for number in range(count):
        words = chance.choice(COMMANDS).split()
        argv = [word.replace("X", chance.choice(VALUES)) for word in words]
        with within((number, argv)):
            code = run_main(run_command, argv, "cerebras-tf")
        shown = capsys.readouterr()
        assert code in (0, 2), f"{argv}: {code}\n{shown.err}"
        assert "Traceback" not in shown.err and "\x1b" not in shown.out + shown.err, argv


def test_odd_arguments_of_commands(tmp_path, monkeypatch, capsys):
    odd_commands(tmp_path, monkeypatch, capsys, 40, 0)


@pytest.mark.slow
def test_many_odd_arguments_of_commands(tmp_path, monkeypatch, capsys):
    odd_commands(tmp_path, monkeypatch, capsys, 400, 1)


@pytest.mark.parametrize("variable", (*FOR_USERS, *SET_BY_LAUNCHERS), ids=lambda each: each.name)
def test_odd_values_of_variables(variable):
    for text in (*VALUES, "[]", "{}", "null", "{", "1.5", "2", "x" * 5000, "٣"):
        with within((variable.name, text)):
            variable.get({variable.name: text})
