"""Tells csrun_wse how many processes a command asks for, and where their logs belong.

    python -m modelzoo.common.wafers NUM_CSX COMMAND ARGUMENTS

NUM_CSX is what csrun_wse was given, 0 for nothing: then the command's own --num_csx counts, or
runconfig.num_csx of its params file. Prints the number of processes, `yes` where one of these is
written, else `no`, and the folder of their logs. It imports no TensorFlow.
"""

from __future__ import annotations

from modelzoo.common import interrupt  # before what takes time to load

# isort: split
import os
import sys

from cerebras_tf.cli.arguments import MODES, parse_arguments
from cerebras_tf.cli.exit_codes import run_main
from modelzoo.common.params import read_yaml
from modelzoo.common.run import read_params

interrupt.loaded()


def main(arguments):
    """Prints what the command asks for, in one line."""
    given, command = int(arguments[0]), arguments[1:]
    args = runner_arguments(command)
    if args is None:
        print(given or 1, "yes" if given else "no", os.path.abspath("csrun_logs"))
        return
    runconfig = read_params(args).runconfig
    written = read_yaml(args.params)[0].get("runconfig") or {}
    is_asked = given or args.num_csx or "num_csx" in written
    logs = os.path.join(os.path.abspath(runconfig.model_dir), "logs")
    print(given or runconfig.num_csx, "yes" if is_asked else "no", logs)


def runner_arguments(command):
    """Returns the RunArguments of a command of the model zoo's runner; None of another command."""
    program, *words = command
    if os.path.basename(program) not in ("python", "python-ws") or not is_runner_call(words):
        return None
    return parse_arguments(words, "csrun_wse")


def is_runner_call(words):
    """Whether arguments are the runner's, as is_runner_call of scripts/environment.sh decides."""
    first = words[0] if words else ""
    if first == "-m":  # a module of one's own has another name
        return not words[1:] or words[1] in MODES
    if first.startswith(("--version", "--help", "--check-hash-based-pycs")):
        return False
    return first.removeprefix("-m") in MODES or first.startswith(("-p", "-o", "--"))


if __name__ == "__main__":
    sys.exit(run_main(main, program="csrun_wse"))
