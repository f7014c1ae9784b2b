"""`cerebras-tf run`: runs a compiled program in a process without TensorFlow."""

from __future__ import annotations

import argparse

from cerebras_tf.cli.parser import positive_int
from cerebras_tf.errors import ConfigError

_OF_BATCHES = ("checkpoint", "steps", "outputs", "save")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("program", metavar="PROGRAM", help="program_*.zip of --compile_only")
    parser.add_argument("--inputs", metavar="NPZ", help="a batch: one array per feature")
    parser.add_argument("--checkpoint", metavar="CKPT", help="checkpoint with the variables")
    parser.add_argument(
        "--steps",
        type=positive_int,
        metavar="N",
        help=("number of times to run the batch (default: 1)"),
    )
    parser.add_argument("--outputs", metavar="NPZ", help="file for the results")
    parser.add_argument("--save", metavar="CKPT", help="checkpoint to write at the end")
    parser.epilog = "Without --inputs, shows the inputs and outputs of the program."


def run(args: argparse.Namespace) -> None:
    """Runs the program, or shows what it takes.

    Raises:
        ConfigError: an argument needs a batch, and none is given.
    """
    from cerebras_tf.runtime import saved_run

    if args.inputs is None:
        given = [f"--{name}" for name in _OF_BATCHES if getattr(args, name) is not None]
        if given:
            raise ConfigError(
                f"run: {', '.join(given)} must be used with a batch. Received: no --inputs. Add "
                "--inputs, or pass only the program to show its inputs."
            )
        print(saved_run.describe_saved(args.program))
        return
    steps = args.steps or 1
    found = saved_run.run_saved(args.program, args.inputs, args.checkpoint, steps, args.save)
    if args.outputs is not None:
        saved_run.write_results(args.outputs, found)
    print(saved_run.shown_results(found))
