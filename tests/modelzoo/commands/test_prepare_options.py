"""Tests of prepare.py: options are read and the closing line tells what was done."""

from __future__ import annotations

import argparse

import pytest

from cerebras_tf.errors import DataError
from modelzoo.commands import prepare
from modelzoo.commands.main import main
from tests.messages import names

pytest.importorskip("tqdm")


def preparing(records, amount, rows=5):
    def prepare(advance):
        if amount:
            advance(amount)
        return {"counts": {"rows": rows, "records": records}, "files": [{}] * 2}

    return prepare


@pytest.mark.parametrize("number", ["-4", "99999"])
def test_fewer_processes_than_none_and_absurdly_many_are_refused(capsys, number):
    parser = argparse.ArgumentParser()
    prepare.add_arguments(parser, "translation")
    with pytest.raises(SystemExit):
        parser.parse_args(["--processes", number])
    told = " ".join(capsys.readouterr().err.split())
    assert "--processes: must be 0 to " in told and f"Received: {number}." in told


@pytest.mark.parametrize(("unit", "told"), [("B", " MB/s, "), ("row", " row/s, ")])
def test_closing_line_tells_counts_and_speed(capsys, unit, told):
    manifest = prepare.run_preparation(preparing(7, 9_000_000), ["a"], "out", unit=unit)
    line = capsys.readouterr().out
    assert line.startswith("5 rows, 7 records in 2 files in out (") and told in line
    assert manifest["counts"]["records"] == 7


def test_closing_line_of_a_finished_preparation_tells_no_speed(capsys):
    prepare.run_preparation(preparing(7, 0), ["a"], "out")
    assert "s, nothing left to do)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("inputs", "named"), [(["a.txt"], "a.txt"), ([*"abcde"], "a, b, c and 2 more")]
)
def test_no_record_at_all_is_an_error_with_the_inputs_and_a_remedy(inputs, named):
    with pytest.raises(DataError) as error:
        prepare.run_preparation(preparing(0, 1), inputs, "out", remedy="Add text.")
    assert str(error.value) == (
        f"out: must get at least one record, of {named}. Received: 5 rows, 0 records. Add text."
    )


@pytest.mark.parametrize("option", [("--seed", "5"), ("--ftfy_normalizer", "NFD")])
def test_options_that_change_nothing_are_refused(option, tmp_path, capsys):
    inputs = ("--input_dir", str(tmp_path), "--tokenizer_type", "ByteTokenizer")
    assert main(["prepare", "gpt", *inputs, *option]) == 2
    assert names(capsys.readouterr().err, *option)


@pytest.mark.parametrize("text", ["1.5", "-1"])
def test_shares_out_of_range_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must"):
        prepare.share(text)
