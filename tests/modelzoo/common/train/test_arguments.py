"""Checks the runner's flags, and that absent flags override nothing."""

from __future__ import annotations

import pytest

from cerebras_tf.api import Parser
from modelzoo.common.train.arguments import (
    COMPILE,
    MODES,
    RunArguments,
    add_arguments,
    parse_arguments,
)
from tests.messages import names

REQUIRED = ["-m", "train", "-p", "params.yaml"]


def test_only_required_arguments_override_only_the_mode():
    args = parse_arguments(REQUIRED)
    assert args == RunArguments("train", "params.yaml", {}, [])
    assert args.overrides() == {"runconfig.mode": "train"}


def test_the_product_articles_line_parses():
    line = "-m train -o gpt3_xl_pile -p configs/params_gpt3_xl_pile.yaml --cs_ip 10.0.0.1 "
    args = parse_arguments((line + "--max_steps 2000").split())
    assert args.given == {"model_dir": "gpt3_xl_pile", "cs_ip": "10.0.0.1", "max_steps": 2000}
    assert args.overrides()["runconfig.cs_ip"] == "10.0.0.1"


def test_cs_ip_may_come_without_an_address():
    args = parse_arguments([*REQUIRED, "--cs_ip", "--max_steps", "2000"])
    assert args.given == {"cs_ip": "", "max_steps": 2000}


def test_flags_of_the_appliance_mode_are_taken():
    flags = "--mgmt_address a:443 --mount_dirs /a /b --python_paths /c --credentials_path x.pem"
    args = parse_arguments([*REQUIRED, *flags.split()])
    assert args.given["mount_dirs"] == ["/a", "/b"] and args.given["credentials_path"] == "x.pem"


def test_every_flag_given_overrides():
    flags = (
        "-o out --cs_ip 127.0.0.1 --max_steps 9 --steps 8 --eval_steps 7 "
        "--save_checkpoints_steps 6 --save_summary_steps 5 --checkpoint_path c --compile_only "
        "--profile 4 --multireplica --num_csx 2 --device /cpu:0 --debug"
    )
    args = parse_arguments(["--mode", "eval", "--params", "p", *flags.split()])
    assert args.debug and args.mode == "eval"
    assert args.given == {
        "model_dir": "out",
        "cs_ip": "127.0.0.1",
        "max_steps": 9,
        "steps": 8,
        "eval_steps": 7,
        "save_checkpoints_steps": 6,
        "save_summary_steps": 5,
        "profile": 4,
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
    assert parse_arguments([*REQUIRED, "--eval_steps", steps]).given == {"eval_steps": int(steps)}


@pytest.mark.parametrize(
    "argv,facts",
    [
        ([], ("required: -m/--mode, -p/--params",)),
        (["-m", "trian", "-p", "x"], ("--mode", "'trian'", "Did you mean train?")),
        *(
            ([*REQUIRED, "--max_steps", text], ("--max_steps", f"Received: '{text[:60]}'"))
            for text in ("many", "٣", "1_000", "9" * 5000, "0", str(2**63), "1.5", "")
        ),
        ([*REQUIRED, "--profile", str(2**31)], ("--profile", 2**31)),
        (["--mode", "train", "--parms", "x"], ("--parms", "Did you mean --params?")),
        ([*REQUIRED, "--max_step", "1"], ("--max_step", "Did you mean --max_steps?")),
        ([*REQUIRED, "--device", ""], ("--device", "Received: ''")),  # would mean the wafer
        *(([*REQUIRED, "--set", text], ("--set", repr(text))) for text in ("a", "=5", "a..b=5")),
    ],
)
def test_wrong_arguments_exit_2_and_say_why(capsys, argv, facts):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(argv, "run")
    assert stop.value.code == 2
    assert names(" ".join(capsys.readouterr().err.split()), *facts)


def test_help_names_the_program_the_modes_and_two_examples(capsys):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(["-h"], "csrun_wse python-ws")
    assert not stop.value.code
    text = capsys.readouterr().out
    assert text.startswith("usage: csrun_wse python-ws ")
    assert text.count("\n  csrun_wse python-ws -m ") == 2
    for mode, what in MODES.items():
        assert f"{mode}  " in text and what in text
    assert "default: None" not in text


@pytest.mark.parametrize("mode", MODES)
def test_a_command_that_is_a_mode_needs_none(mode):
    parser = Parser(prog="cerebras-tf")
    add_arguments(parser, mode)
    parser.add_argument("--debug", action="store_true")
    args = RunArguments.of(parser.parse_args(["-p", "x", "--max_steps", "3"]))
    assert (args.mode, args.given) == (mode, {"max_steps": 3})


def test_compile_is_for_training_unless_told_otherwise():
    parser = Parser(prog="cerebras-tf")
    add_arguments(parser, COMPILE)
    parser.add_argument("--debug", action="store_true")
    for given, mode in (([], "train"), (["-m", "predict"], "predict")):
        args = RunArguments.of(parser.parse_args(["-p", "x", *given]))
        assert (args.mode, args.given) == (mode, {"compile_only": True})


def test_set_may_be_repeated():
    argv = [
        *REQUIRED,
        "--set",
        "model.hidden_size=8",
        "--set=runconfig.model_dir=a=b",
        "--set=a.b=",
    ]
    assert parse_arguments(argv).settings == [
        ("model.hidden_size", "8"),
        ("runconfig.model_dir", "a=b"),
        ("a.b", ""),
    ]
