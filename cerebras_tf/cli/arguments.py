"""The command line of the model zoo's runner.

It reads no YAML and knows no model; it only says what was given.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Optional

from cerebras_tf.cli.parser import Parser, format_rows
from cerebras_tf.quantities import MOST_GB

# What the runner does, by mode.
MODES = {
    "train": "train up to max_steps, or go on from the last checkpoint",
    "eval": "evaluate the last checkpoint, or the one of --checkpoint_path",
    "train_and_eval": "train, and evaluate at every checkpoint",
    "eval_all": "evaluate every checkpoint of model_dir",
    "predict": "write predictions of a checkpoint for predict_input",
}
COMPILE = "compile"
# Digits of other scripts, spaces and 1_000 are numbers to Python; in a YAML they are none.
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]+")
_MOST_DIGITS = 1000
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class RunArguments:
    """What was given on the command line; None where a flag was absent.

    Attributes:
      mode: one of `MODES`.
      params: path of the YAML file.
      model_dir: folder of checkpoints and events.
      cs_ip: address of the wafer; "" where the flag was given without an address.
      max_steps: global step at which training ends.
      steps: steps to train from here.
      eval_steps: batches of an evaluation; 0 or less means the whole set.
      save_checkpoints_steps: steps between checkpoints.
      save_summary_steps: steps between summaries.
      checkpoint_path: checkpoint whose weights to start from, or to evaluate.
      resume_from: checkpoint to go on from in a new folder, its step and optimizer state included.
      profile: steps of training to profile.
      validate_only: only check that the model compiles.
      compile_only: only compile.
      multireplica: several replicas of the model on one wafer.
      num_csx: number of wafers.
      device: TensorFlow device for what runs on the host.
      debug: show tracebacks.
    """

    mode: str
    params: str
    model_dir: Optional[str] = None
    cs_ip: Optional[str] = None
    max_steps: Optional[int] = None
    steps: Optional[int] = None
    eval_steps: Optional[int] = None
    save_checkpoints_steps: Optional[int] = None
    save_summary_steps: Optional[int] = None
    checkpoint_path: Optional[str] = None
    resume_from: Optional[str] = None
    profile: Optional[int] = None
    validate_only: Optional[bool] = None
    compile_only: Optional[bool] = None
    multireplica: Optional[bool] = None
    num_csx: Optional[int] = None
    device: Optional[str] = None
    debug: bool = False

    def overrides(self) -> dict[str, Any]:
        """Returns the keys of the YAML's `runconfig` that the command line sets.

        Only flags really given are in it: an absent `--multireplica` leaves the YAML's value.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("params", "debug"):
            del values[name]
        return {name: value for name, value in values.items() if value is not None}


def positive_int(text: str, end: int = 2**31) -> int:
    """Parses a whole number above zero and below `end`, for argparse."""
    number = any_int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {text}.")
    if number >= end:
        raise argparse.ArgumentTypeError(f"must be below {end}. Received: {text}.")
    return number


def step_int(text: str) -> int:
    """Parses a number of steps, which has 64 bits, for argparse."""
    return positive_int(text, 2**63)


def seed_int(text: str) -> int:
    """Parses what random numbers begin from, for argparse."""
    number = any_int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be 0 to {2**32 - 1}. Received: {text}.")
    return number


def gigabytes(text: str) -> float:
    """Parses a number of 10^9 bytes, for argparse."""
    number = positive_number(text)
    if number >= MOST_GB:
        raise argparse.ArgumentTypeError(f"must be below {MOST_GB:g}. Received: {text}.")
    return number


def positive_number(text: str) -> float:
    """Parses a finite number above zero, for argparse."""
    value = any_number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0. Received: {text!r}.")
    return value


def any_number(text: str) -> float:
    """A number in the digits 0 to 9; NaN for other text."""
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def any_int(text: str) -> int:
    """Parses a whole number in the digits 0 to 9, for argparse."""
    if not _WHOLE_NUMBER.fullmatch(text) or len(text) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(
            f"must be a whole number, in the digits 0 to 9. Received: {text[:60]!r}."
        )
    return int(text)


def build_parser(program: Optional[str] = None) -> argparse.ArgumentParser:
    """Builds the runner's parser. Absent flags parse to None."""
    parser = Parser(
        prog=program, description="Train, evaluate or run the model that a params file names."
    )
    add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_arguments(parser: argparse.ArgumentParser, command: Optional[str] = None) -> None:
    """Adds the runner's arguments.

    Args:
      parser: the parser, whose `prog` is shown in the examples.
      command: one of `MODES` where the command is that mode and needs no `-m`, or `COMPILE`, which
        compiles for the mode asked for; None for all modes.
    """
    # A command of `cerebras-tf` finds copies of configs; prediction needs a section they lack.
    example = f"-p {'' if command else 'configs/'}params_gpt3_tiny.yaml"
    if command == "predict":
        example = "-p params_mine.yaml"
    if command in MODES:
        parser.set_defaults(mode=command)
        examples = [example, f"{example} -o model_dir/mine"]
    else:
        given = {"default": "train"} if command == COMPILE else {"required": True}
        parser.add_argument(
            "-m", "--mode", choices=tuple(MODES), metavar="MODE", help="what to do", **given
        )
        examples = [f"-m train {example}", f"-m eval {example} -o model_dir/mine"]
    parser.add_argument("-p", "--params", required=True, metavar="YAML", help="params file")
    parser.add_argument(
        "-o",
        "--model_dir",
        metavar="DIR",
        help="checkpoints and events; goes on from the last (default: model_dir/ and the name of "
        "the params file without params_)",
    )
    _add_place_arguments(parser)
    _add_step_arguments(parser)
    parser.add_argument(
        "--checkpoint_path", metavar="CKPT", help="checkpoint to start from or to evaluate"
    )
    parser.add_argument(
        "--resume_from", metavar="CKPT", help="checkpoint to go on from in a new model_dir"
    )
    if command == COMPILE:
        parser.set_defaults(compile_only=True)
    else:
        _add_compile_arguments(parser)
    parser.epilog = "" if command in MODES else f"modes:\n{format_rows(MODES)}\n\n"
    parser.epilog += "examples:\n" + "\n".join(f"  {parser.prog} {text}" for text in examples)


def _add_place_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cs_ip",
        type=str,
        nargs="?",
        const="",
        metavar="IP",
        help="address of the wafer; empty or loopback is the one emulated in this process",
    )
    parser.add_argument(
        "--multireplica", action="store_true", default=None, help="several replicas on one wafer"
    )
    parser.add_argument("--num_csx", type=positive_int, metavar="N", help="number of wafers")
    parser.add_argument(
        "--device", metavar="DEVICE", help="/cpu:0 runs the model on the host, with TensorFlow"
    )


def _add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    only = parser.add_mutually_exclusive_group()
    # The default is None, not False, so that an absent flag does not override the params file.
    only.add_argument(
        "--validate_only", action="store_true", default=None, help="only check that it compiles"
    )
    only.add_argument("--compile_only", action="store_true", default=None, help="only compile")


def _add_step_arguments(parser: argparse.ArgumentParser) -> None:
    for name, parse, text in (
        ("max_steps", step_int, "train up to this global step"),
        ("steps", step_int, "train this many more steps"),
        ("eval_steps", any_int, "batches of an evaluation; 0 or less: the whole set"),
        ("save_checkpoints_steps", step_int, "steps between checkpoints"),
        ("save_summary_steps", step_int, "steps between summaries"),
        ("profile", positive_int, "write a trace of this many steps, and say what bounds them"),
    ):
        parser.add_argument(f"--{name}", type=parse, metavar="N", help=text)


def parse_arguments(
    argv: Optional[Sequence[str]] = None, program: Optional[str] = None
) -> RunArguments:
    """Parses the runner's command line.

    Args:
      argv: the arguments without the program's name; None takes those of this process.
      program: the name shown in usage and errors.

    Raises:
      SystemExit: with code 2 and a usage message where an argument is wrong.
    """
    return RunArguments(**vars(build_parser(program).parse_args(argv)))


if __name__ == "__main__":
    # The help of `python-ws`, for which no environment need be there: `python FILE PROGRAM`.
    build_parser(sys.argv[1]).print_help()
