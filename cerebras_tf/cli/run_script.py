"""`cerebras-tf python SCRIPT`: runs a script that uses tf.estimator, on any TensorFlow.

The script is not changed. It runs in a Python that has imported cerebras_tf, which provides
`tf.estimator` where TensorFlow lacks it.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from cerebras_tf.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.usage = f"{parser.prog} SCRIPT [ARGUMENTS]\n       {parser.prog} -m MODULE [ARGUMENTS]"
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module instead of a script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script and its arguments")


def run(args: argparse.Namespace) -> None:
    """Replaces this process by one that runs the script.

    Raises:
        ConfigError: there is no such script.
    """
    module = [] if args.module is None else ["-m", args.module]
    if not module and not os.path.isfile("".join(args.arguments[:1])):
        raise ConfigError(
            f"python: must be given a script. Received: {' '.join(args.arguments) or 'nothing'}."
        )
    os.execv(sys.executable, [sys.executable, "-m", __name__, *module, *args.arguments])


def main(argv: list[str]) -> None:
    """Runs `SCRIPT [ARGUMENTS]` or `-m MODULE [ARGUMENTS]` as Python does."""
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv, sys.path[0] = argv, os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
