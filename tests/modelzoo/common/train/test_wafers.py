"""Which commands of csrun_wse are the runner's, and how many wafers they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.common.train.wafers import is_runner_call, main
from tests.messages import raises
from tests.modelzoo.configs import CONFIGS

TINY = str(CONFIGS / "params_gpt3_tiny.yaml")


@pytest.mark.parametrize(
    "words", [["-m", "train", "-p", TINY], ["-p", TINY, "-m", "train"], ["-mtrain", f"-p{TINY}"]]
)
def test_wafers_are_found_in_any_order_of_the_arguments(words, tmp_path, capsys):
    assert is_runner_call(words)
    main(["0", "python-ws", *words, "--num_csx", "2", "-o", str(tmp_path)])
    assert capsys.readouterr().out == f"2\0yes\0{tmp_path}/logs\0"


def test_one_wafer_is_asked_for_only_where_it_is_written(tmp_path, capsys):
    written = tmp_path / "params.yaml"
    text = Path(TINY).read_text(encoding="utf-8")
    assert "num_csx" not in text
    written.write_text(text.replace("runconfig:", "runconfig:\n    num_csx: 1"), encoding="utf-8")
    for path, given, asked in ((TINY, "0", "no"), (TINY, "1", "yes"), (str(written), "0", "yes")):
        main([given, "python-ws", "-m", "train", "-p", path])
        assert capsys.readouterr().out.split("\0")[:2] == ["1", asked]


@pytest.mark.parametrize("words", [["script.py"], ["-m", "my.module"], ["--version"], ["-c", "1"]])
def test_other_programs_ask_for_none(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").touch()
    main(["0", "python-ws", *words])
    assert capsys.readouterr().out.split("\0")[:2] == ["1", "no"]


def test_numbers_that_contradict_one_another_are_refused():
    with raises(ConfigError, "2 and 3"):
        main(["2", "python-ws", "-m", "train", "-p", TINY, "--num_csx", "3"])
