"""Checks the runner's flags, and that absent flags override nothing."""

from __future__ import annotations

import pytest

from cerebras_tf.cli.arguments import MODES, RunArguments, parse_arguments

REQUIRED = ["-m", "train", "-p", "params.yaml"]


def test_only_required_arguments_override_only_the_mode():
    args = parse_arguments(REQUIRED)
    assert args == RunArguments(mode="train", params="params.yaml")
    assert args.overrides() == {"mode": "train"}


def test_the_product_articles_line_parses():
    line = "-m train -o gpt3_xl_pile -p configs/params_gpt3_xl_pile.yaml --cs_ip 10.0.0.1 "
    args = parse_arguments((line + "--max_steps 2000").split())
    assert args.overrides() == {
        "mode": "train",
        "model_dir": "gpt3_xl_pile",
        "cs_ip": "10.0.0.1",
        "max_steps": 2000,
    }


def test_cs_ip_may_come_without_an_address():
    args = parse_arguments([*REQUIRED, "--cs_ip", "--max_steps", "2000"])
    assert args.cs_ip == ""
    assert args.max_steps == 2000
    assert args.overrides()["cs_ip"] == ""


def test_every_flag_given_overrides():
    flags = (
        "-o out --cs_ip 127.0.0.1 --max_steps 9 --steps 8 --eval_steps 7 "
        "--save_checkpoints_steps 6 --save_summary_steps 5 --checkpoint_path c --compile_only "
        "--multireplica --num_csx 2 --device /cpu:0 --debug"
    )
    args = parse_arguments(["--mode", "eval", "--params", "p", *flags.split()])
    assert args.debug
    assert args.overrides() == {
        "mode": "eval",
        "model_dir": "out",
        "cs_ip": "127.0.0.1",
        "max_steps": 9,
        "steps": 8,
        "eval_steps": 7,
        "save_checkpoints_steps": 6,
        "save_summary_steps": 5,
        "checkpoint_path": "c",
        "compile_only": True,
        "multireplica": True,
        "num_csx": 2,
        "device": "/cpu:0",
    }


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_accepted(mode):
    assert parse_arguments(["-m", mode, "-p", "x"]).mode == mode


@pytest.mark.parametrize("steps", ["-1", "0"])
def test_eval_steps_of_zero_or_less_are_accepted(steps):
    assert parse_arguments([*REQUIRED, "--eval_steps", steps]).eval_steps == int(steps)


@pytest.mark.parametrize(
    "argv,message",
    [
        ([], "the following arguments are required: -m/--mode, -p/--params"),
        (["-m", "fit", "-p", "x"], "invalid choice: 'fit'"),
        ([*REQUIRED, "--validate_only", "--compile_only"], "not allowed with argument"),
        ([*REQUIRED, "--max_steps", "many"], "must be a whole number. Received: 'many'"),
        ([*REQUIRED, "--max_steps", "0"], "must be at least 1. Received: 0"),
        ([*REQUIRED, "--max_step", "1"], "unrecognized arguments: --max_step 1"),
    ],
)
def test_wrong_arguments_exit_2_and_say_why(capsys, argv, message):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(argv, "run")
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
