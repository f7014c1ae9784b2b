"""`cerebras-tf python SCRIPT`: runs a script that uses tf.estimator, on any TensorFlow.

The script is not changed. It runs in a Python that has imported cerebras_tf, which provides
`tf.estimator` where TensorFlow lacks it, and that has the names of TensorFlow 2.2.
"""

from __future__ import annotations

import argparse
import itertools
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from cerebras_tf.errors import ConfigError
from cerebras_tf.run_module import module_command
from cerebras_tf.tf_compat import startup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.usage = f"{parser.prog} [-h] [--debug] SCRIPT [ARGUMENTS]"
    parser.epilog = f"{parser.prog} -m MODULE [ARGUMENTS] runs a module."


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the command's own options, and the script with its arguments."""
    own = list(itertools.takewhile(lambda word: word.startswith("-") and word != "-m", argv))
    return own, list(argv[len(own) :])


def run(args: argparse.Namespace) -> None:
    """Replaces this process by one that runs the script.

    Raises:
        ConfigError: there is no such script.
    """
    words = args.rest
    if not (len(words) > 1 if words[:1] == ["-m"] else os.path.isfile("".join(words[:1]))):
        raise ConfigError(
            "python: must be given a script, or -m and a module. "
            f"Received: {' '.join(words) or 'nothing'}."
        )
    paths = [str(Path(startup.__file__).parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.execv(sys.executable, module_command(__name__, *words))


def main(argv: list[str]) -> None:
    """Runs `SCRIPT [ARGUMENTS]` or `-m MODULE [ARGUMENTS]` as Python does."""
    if argv[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
