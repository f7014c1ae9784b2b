"""The command line of the model zoo's runner; its flags follow from cerebras_tf.config.run_options.

It reads no params file and imports no model.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from cerebras_tf.api import Parser, format_rows
from cerebras_tf.config.run_options import MODES, RunConfigParams, without_none
from cerebras_tf.config.schema import Refused, check_value

COMPILE = "compile"
_FLAGS = [each for each in dataclasses.fields(RunConfigParams) if "flag" in each.metadata]
_HINTS = typing.get_type_hints(RunConfigParams)


@dataclass(frozen=True)
class RunArguments:
    """The parsed command line.

    Attributes:
      mode: one of `MODES`.
      params: path of the params file.
      given: values of keys of `runconfig` that flags set; absent flags are not in it.
      settings: dotted key and YAML text of each `--set`.
      debug: whether to show tracebacks.
    """

    mode: str
    params: str
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Sequence[tuple[str, str]] = ()
    debug: bool = False

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> RunArguments:
        """Makes it of what the runner's parser returns."""
        values = vars(parsed)
        flags = {each.name: values[each.name] for each in _FLAGS if each.name in values}
        return cls(
            parsed.mode,
            parsed.params,
            {name: value for name, value in flags.items() if value is not None},
            parsed.set,
            parsed.debug,
        )

    def overrides(self) -> dict[str, Any]:
        """Returns the keys of the params file that mode and flags set, by dotted key."""
        return {"runconfig.mode": self.mode} | {
            f"runconfig.{name}": value for name, value in self.given.items()
        }


def setting(text: str) -> tuple[str, str]:
    """Parses `SECTION.KEY=VALUE`, for argparse; the value is checked with the params file."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise argparse.ArgumentTypeError(
            "must have the form SECTION.KEY=VALUE, such as model.hidden_size=64. Received: "
            f"{text!r}."
        )
    return key, value


def add_params_argument(
    parser: argparse.ArgumentParser, text: str = "params file", **settings: Any
) -> None:
    """Adds `--params`, required by default, and `--set` and `--model`, which change its keys."""
    parser.add_argument(
        "-p", "--params", metavar="YAML", help=text, **{"required": True, **settings}
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="SECTION.KEY=VALUE",
        help="set a key of the params file to a YAML value (can be repeated)",
    )
    parser.add_argument(
        "--model",
        dest="set",
        action="append",
        type=lambda name: ("model_name", name),
        metavar="NAME",
        help="model of a params file without the key model_name, if its keys do not determine it",
    )


def build_parser(program: Optional[str] = None) -> argparse.ArgumentParser:
    """Builds the runner's parser. Absent flags parse to None."""
    parser = Parser(prog=program, description="Train, evaluate or run the model of a params file.")
    add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_arguments(parser: argparse.ArgumentParser, command: Optional[str] = None) -> None:
    """Adds the runner's arguments.

    Args:
      parser: the parser, whose `prog` is shown in the examples.
      command: one of `MODES` where the command is that mode and needs no `-m`, or `COMPILE`, which
        compiles for the given mode; None for all modes.
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
            "-m", "--mode", choices=tuple(MODES), metavar="MODE", help="mode of the run", **given
        )
        examples = [f"-m train {example}", f"-m eval {example} -o model_dir/mine"]
    add_params_argument(parser)
    if command == COMPILE:
        parser.set_defaults(compile_only=True)
    for each in _FLAGS:
        if command != COMPILE or each.name not in ("compile_only", "validate_only"):
            _add_flag(parser, each)
    parser.epilog = "" if command in MODES else f"modes:\n{format_rows(MODES)}\n\n"
    parser.epilog += "examples:\n" + "\n".join(f"  {parser.prog} {text}" for text in examples)


def _add_flag(parser: argparse.ArgumentParser, option: Any) -> None:
    """Adds the flag of a key of `runconfig`. Its default is None: the params file's value holds."""
    checks, hint = option.metadata, without_none(_HINTS[option.name])
    names = [*([checks["short"]] if "short" in checks else []), f"--{option.name}"]
    text = checks["text"].partition(". ")[0].rstrip(".")
    text = f"{text[0].lower()}{text[1:]}" if text[1].islower() else text
    kinds: dict[str, Any] = {"help": text}
    if hint is bool:
        kinds["action"] = "store_true"
    else:
        kinds["metavar"] = checks["flag"]
    if hint is int:
        kinds["type"] = _number_parser(hint, checks)
    if typing.get_origin(hint) is tuple:
        kinds["nargs"] = "+"
    if option.name == "cs_ip":  # may be empty
        kinds.update(type=str, nargs="?", const="")
    parser.add_argument(*names, default=None, **kinds)


def _number_parser(hint: Any, checks: Mapping[str, Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return check_value(hint, checks, text)
        except Refused as wrong:
            raise argparse.ArgumentTypeError(f"{wrong} Received: {text[:60]!r}.") from wrong

    return parse


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
    return RunArguments.of(build_parser(program).parse_args(argv))


if __name__ == "__main__":
    # The help of `python-ws`, for which no environment need be there: `python FILE PROGRAM`.
    build_parser(sys.argv[1]).print_help()
