"""`cerebras-tf train`, `eval`, ..., `compile`: the runner, with the command's name for its mode."""

from cerebras_tf import api
from modelzoo.common.train.run import execute


def add_arguments(parser, command):
    """Adds the runner's arguments for `command`: a mode, or ``compile``."""
    api.add_arguments(parser, command)


def run(args):
    """Runs the model."""
    execute(api.RunArguments.of(args))
