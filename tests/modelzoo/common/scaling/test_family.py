"""The small family: sizes that a law can be fitted to, and a command that trains them in turn."""

from __future__ import annotations

import subprocess
import types

import pytest

from modelzoo.commands import scaling
from modelzoo.commands.configs import config_path
from modelzoo.commands.main import main
from modelzoo.common.config.params import load_params
from modelzoo.common.scaling.family import SIZES, write_params
from modelzoo.common.scaling.law import Law, training_flops
from modelzoo.common.scaling.runs import Run


def test_sizes_go_from_a_fifth_of_a_million_to_three_and_compute_grows_evenly(tmp_path):
    found = []
    for size in SIZES:
        params = load_params(write_params(size, config_path("gpt3_tiny"), tmp_path))
        model, section = params.model, params.train_input
        schedule = params.optimizer.learning_rate
        assert sum(getattr(piece, "steps", 0) or piece.decay_steps for piece in schedule) == (
            params.runconfig.max_steps
        )
        tokens = params.runconfig.max_steps * params.global_batch_size * 128
        sizes = model.hidden_size, model.num_hidden_layers, model.num_heads, model.filter_size
        flops = training_flops(*sizes, section.vocab_size or 257, 128, tokens)
        found.append((12 * model.num_hidden_layers * model.hidden_size**2, flops))
    assert found[0][0] == pytest.approx(0.2e6, rel=0.1)
    assert found[-1][0] == pytest.approx(3e6, rel=0.1)
    ratios = [later / sooner for (_, sooner), (_, later) in zip(found, found[1:])]
    assert min(ratios) > 1.5 and max(ratios) < 3


def test_the_command_trains_each_and_fits_their_law(tmp_path, monkeypatch, capsys):
    law, commands = Law(3e15, 0.12, 0.8), []

    def trained(command):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    def read(folder):
        flops = 1e12 * 2.0 ** len(commands) * (1 + int(folder.name.partition("_")[2]))
        return Run(folder.name, flops, law.loss(flops), True)

    monkeypatch.setattr(scaling, "subprocess", types.SimpleNamespace(run=trained))
    monkeypatch.setattr("modelzoo.common.scaling.runs.read_run", read)
    monkeypatch.setattr("modelzoo.common.scaling.runs.require_run", str)
    folder = tmp_path / "family"
    assert main(["scaling", "family", "--folder", str(folder)]) == 0
    assert len(commands) == len(SIZES)
    for size, command in zip(SIZES, commands):
        assert command[-4:] == [
            *("-p", str(folder / f"params_{size.name}.yaml"), "-o", str(folder / size.name))
        ]
    assert "-0.12 + 0.8" in capsys.readouterr().out
    assert (folder / "law.html").is_file()


def test_a_model_that_does_not_train_ends_the_command(tmp_path, monkeypatch, capsys):
    failed = subprocess.CompletedProcess([], 3)
    monkeypatch.setattr(scaling.subprocess, "run", lambda command: failed)
    assert main(["scaling", "family", "--folder", str(tmp_path)]) != 0
    assert "Received: exit code 3" in capsys.readouterr().err
