"""Which commands of csrun_wse are the runner's, and how many wafers they ask for."""

from __future__ import annotations

import pytest

from modelzoo.common.wafers import is_runner_call, main
from tests.modelzoo.configs import CONFIGS

TINY = str(CONFIGS / "params_gpt3_tiny.yaml")


@pytest.mark.parametrize(
    "words",
    [["-m", "train", "-p", TINY], ["-p", TINY, "-m", "train"], ["-mtrain", f"-p{TINY}"]],
)
def test_wafers_are_found_in_any_order_of_the_arguments(words, tmp_path, capsys):
    assert is_runner_call(words)
    main(["0", "python-ws", *words, "--num_csx", "2", "-o", str(tmp_path)])
    assert capsys.readouterr().out.split() == ["2", str(tmp_path / "logs")]


@pytest.mark.parametrize("words", [["script.py"], ["-m", "my.module"], ["--version"], ["-c", "1"]])
def test_other_programs_ask_for_none(words, capsys):
    main(["0", "python-ws", *words])
    assert capsys.readouterr().out.split()[0] == "1"
