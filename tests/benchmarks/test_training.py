"""cerebras-tf bench at its smoke shape: it prints every figure, and both sides compute the same.

No time is judged here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree
from types import SimpleNamespace

import pytest

from benchmarks.report import print_figures
from benchmarks.training import sgemm_flops_per_s
from benchmarks.turns import Turn
from modelzoo.commands.main import main

BENCH = [sys.executable, "-m", "modelzoo.commands.main", "bench"]


def bench(*arguments):
    command = [*BENCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    files = ("--json", str(folder / "found.json"), "--plot", str(folder / "found.svg"))
    shape = ("--rounds", "2", "--steps", "2", "--batch", "3")
    ran = bench("--smoke", *shape, "--bfloat16", *files)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, folder


@pytest.fixture
def printed(ran):
    return ran[0]


def figures(printed, side):
    """A row: s/step, CPU s, tokens/s, GFLOP/s, percent of sgemm, peak GB, first step s, loss."""
    (row,) = re.findall(rf"^{side} +(\d.*)$", printed, flags=re.MULTILINE)
    return [float(word.rstrip("%")) for word in row.split()]


@pytest.mark.tf
def test_bench_prints_figures_of_both_sides_that_fit_each_other(printed):
    for side in ("wafer", "host"):
        step_s, cpu_s, tokens_per_s, gflops_per_s, share, peak_gb, first_s, _ = figures(
            printed, side
        )
        assert min(step_s, cpu_s, tokens_per_s, gflops_per_s, share) > 0
        assert 0.1 < peak_gb < 10 and first_s > step_s
        assert tokens_per_s == pytest.approx(3 * 32 / step_s, rel=0.1)
    assert re.search(r"^sgemm +\d+\.\d  \(\d+\.\d to \d+\.\d; 256 x 256\)$", printed, re.MULTILINE)
    assert re.search(r"^wafer: \d+\.\d\d times as fast as the host \(by round:", printed, re.M)


@pytest.mark.tf
def test_bench_lets_sides_alternate_and_shows_every_step(printed):
    turns = re.findall(r"^round (\d), (\w+) *: (\d+\.\d+), (\d+\.\d+) s$", printed, re.MULTILINE)
    sides = ("bfloat16", "wafer", "host")
    assert [turn[:2] for turn in turns] == [(number, side) for number in "12" for side in sides]


@pytest.mark.tf
def test_bench_trains_the_same_model_on_both_sides(printed):
    losses = [figures(printed, side)[-1] for side in ("wafer", "host")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.tf
def test_bench_counts_the_matrix_products_of_a_step(printed):
    """6 operations a weight and token, and 7 products of attention scores, half of them masked."""
    hidden, vocabulary, tokens, sequence = 128, 257, 3 * 32, 32
    weights = 12 * hidden**2 + vocabulary * hidden
    products = 6 * weights * tokens + 7 * tokens * sequence * hidden
    flops = 1e12 * float(re.search(r"^(\S+) TFLOP per step", printed, re.MULTILINE)[1])
    assert products <= flops <= 1.15 * products


def check_sentences(ran):
    assert ran.returncode == 0, ran.stderr
    losses = [figures(ran.stdout, side)[-1] for side in ("wafer", "host")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert "padding included" in ran.stdout


@pytest.mark.tf
def test_bench_writes_its_figures_and_a_drawing_to_files(ran):
    _, folder = ran
    found = json.loads((folder / "found.json").read_text())
    assert found["shape"]["model"] == "gpt2"
    assert set(found["sides"]) == {"wafer", "host", "bfloat16"}
    assert len(found["sides"]["wafer"][0]["step_s"]) == 2 and found["flops"] > 0
    drawn = xml.etree.ElementTree.parse(folder / "found.svg").getroot()
    assert sum(item.tag.endswith("rect") for item in drawn) == 3


@pytest.mark.tf
@pytest.mark.slow
def test_bench_measures_peers():
    """Where PyTorch is not installed, or has no such model, there is a line in its place.

    Each batch of the transformer's pairs is as long as its longest.
    """
    pairs = ("--model", "transformer", "--pad", "batch")
    ran = bench("--smoke", "--peers", *pairs, "--rounds", "1", "--steps", "2")
    check_sentences(ran)
    assert len(re.findall(r"^(?:torch|compile).*: not measured: ", ran.stdout, re.M)) == 2


@pytest.mark.tf
def test_bench_measures_bfloat16_beside_float32(printed):
    assert figures(printed, "bfloat16")[-1] == pytest.approx(figures(printed, "wafer")[-1], 0.01)
    assert re.search(r"^bfloat16: \d+\.\d\d times as fast as the wafer \(by", printed, re.M)
    assert re.search(r"^bfloat16: \d+\.\d\d times as fast as the host \(by", printed, re.M)


@pytest.mark.tf
@pytest.mark.slow
def test_bench_measures_what_a_step_takes_beside_its_kernels():
    ran = bench("--overhead")
    assert ran.returncode == 0, ran.stderr
    *parts, step, least = (float(word) for word in re.findall(r"(\S+) ms$", ran.stdout, re.M)[:6])
    assert len(parts) == 4 and min(parts) > 0
    assert sum(parts) == pytest.approx(step, abs=0.003) and least <= step
    assert re.search(
        r"^a step with the input that \S+ names: \S+ ms: input \S+ ms$", ran.stdout, re.M
    )


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--overhead", "--rounds", "5"], "--rounds"),
        (["--smoke", "--hidden", "200"], "hidden_size"),
    ],
)
def test_options_that_have_no_effect_or_do_not_fit_are_refused(capsys, words, fact):
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("cerebras-tf: ") and fact in error


@pytest.mark.tf
@pytest.mark.slow
def test_bench_trains_on_sentences():
    check_sentences(
        bench("--smoke", "--model", "bert", "--pad", "fixed", "--rounds", "1", "--steps", "2")
    )


@pytest.mark.tf
@pytest.mark.slow
def test_bench_compares_files_with_memory(tmp_path):
    arguments = ("--memoryx_dir", str(tmp_path), "--memoryx_ram_gb", "0.004")
    ran = bench("--smoke", "--model", "gptj", "--rounds", "1", "--steps", "2", *arguments)
    assert ran.returncode == 0, ran.stderr
    losses = [figures(ran.stdout, side)[-1] for side in ("memory", "files")]
    assert losses[0] == losses[1]
    assert re.search(r"^files: \d+\.\d\d times the time in memory \(by round:", ran.stdout, re.M)
    (moved,) = re.findall(r"^files: (\S+) GB moved per step, \d+% of the time", ran.stdout, re.M)
    assert float(moved) >= 0
    assert not list(tmp_path.iterdir())


def test_a_share_beyond_the_speed_of_sgemm_is_explained(capsys):
    shape = SimpleNamespace(tokens=8, product=256)
    slow, fast = (Turn([seconds], [seconds], 1.0, sgemm=100.0) for seconds in (2.0, 0.5))
    for turns, explained in [({"wafer": [slow]}, 0), ({"wafer": [slow], "bfloat16": [fast]}, 1)]:
        print_figures(shape, 100, turns, [])
        out = capsys.readouterr().out
        assert out.count("more than 100 % of sgemm (bfloat16)") == explained


def test_the_limit_is_the_fastest_product_of_this_computer(monkeypatch):
    """A product of NumPy's may be several times slower."""
    monkeypatch.setattr("numpy.matmul", lambda *given, **more: pytest.fail("NumPy's product"))
    assert sgemm_flops_per_s(64) > 0
