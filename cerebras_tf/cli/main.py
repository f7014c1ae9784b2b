"""The `cerebras-tf` program: picks the command and runs it.

Training is the model zoo's runner's.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Optional

from cerebras_tf.cli.exit_codes import run_main

PROGRAM = "cerebras-tf"
# Each module offers add_arguments(parser) and run(args) -> exit code or None. Only the one asked
# for is imported, because some import TensorFlow.
COMMANDS = {
    "info": ("cerebras_tf.cli.info", "show versions, cores, memory, BLAS and kernel cache"),
}


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Builds the program's parser, with the arguments of the command that `argv` begins with."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Tools for training TensorFlow estimators on an emulated wafer."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in argv[:1]:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.add_argument("--debug", action="store_true", help="show tracebacks")
            command.set_defaults(run=module.run)
    return parser


def run_command(argv: list[str]) -> Optional[int]:
    """Parses `argv` and runs the command it names."""
    args = build_parser(argv).parse_args(argv)
    return args.run(args)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the program and returns its exit code; see exit_codes.run_main."""
    return run_main(run_command, argv, PROGRAM)
