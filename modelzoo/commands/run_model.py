"""`cerebras-tf train`, `eval`, ..., `compile`: the runner, with the command's name for its mode."""

from modelzoo.common.train import arguments
from modelzoo.common.train.run import execute


def add_arguments(parser, command):
    """Adds the runner's arguments for `command`: a mode, or ``compile``."""
    arguments.add_arguments(parser, command)


def run(args):
    """Runs the model."""
    execute(arguments.RunArguments.of(args))
