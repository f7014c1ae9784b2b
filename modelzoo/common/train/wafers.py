"""Prints for csrun_wse the number of processes of a command, and the folder of their logs.

    python -m modelzoo.common.train.wafers NUM_CSX COMMAND ARGUMENTS

NUM_CSX is what csrun_wse was given, 0 for nothing: then the command's own --num_csx counts, or
runconfig.num_csx of its params file. Prints the number of processes, `yes` where one of these is
written, else `no`, and the folder of their logs. It imports no TensorFlow.
"""

import os
import sys

from cerebras_tf.api import run_main
from cerebras_tf.errors import ConfigError
from modelzoo.common.config.params import read_yaml
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.train.arguments import MODES, parse_arguments
from modelzoo.common.train.run import read_params


def main(arguments):
    """Prints the number of processes, whether it is asked for, and the folder of logs."""
    given, command = int(arguments[0]), arguments[1:]
    args = runner_arguments(command)
    if args is None:
        check_script(command)
        _print(given or 1, given, os.path.abspath("csrun_logs"))
        return
    asked = args.given.get("num_csx")
    if given and asked not in (None, given):
        raise ConfigError(
            f"--num_csx: must be the same for csrun_wse and for the command. Received: {given} and "
            f"{asked}. Remove one of them."
        )
    if given:
        args.given["num_csx"] = given
    runconfig = read_params(args).runconfig
    written = read_yaml(args.params)[0].get("runconfig") or {}
    is_set = "num_csx" in written or "runconfig.num_csx" in dict(args.settings)
    is_asked = given or asked or is_set
    logs = os.path.join(os.path.abspath(runconfig.model_dir), "logs")
    _print(given or runconfig.num_csx, is_asked, logs)


def _print(wafers, is_asked, logs):
    """Prints each with a null character after it, which no path contains."""
    print(wafers, "yes" if is_asked else "no", logs, sep="\0", end="\0")


def check_script(command):
    """Raises ConfigError if the script of a Python command does not exist."""
    program, *words = command
    is_python = os.path.basename(program) in ("python", "python-ws")
    if is_python and words and words[0][:1] != "-" and not os.path.exists(words[0]):
        raise ConfigError(
            f"{words[0]}: must be an existing script. Received: none. "
            f"{advice_on_path(words[0], 'Correct the path.')}"
        )


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
