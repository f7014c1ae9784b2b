"""What the commands of all data preparations share: options, progress bar and closing line.

It prepares nothing itself; ``modelzoo/commands/prepare.py`` passes what to run.
"""

import argparse
import os
import time

from cerebras_tf.api import any_int, any_number
from cerebras_tf.errors import DataError
from modelzoo.common.data.preparation import records

MOST_PER_CORE = 16  # worker processes: more only wait for one another
CLOCK_TICK_S = 0.01  # what the system's clock of processor time can resolve


def share(text):
    """Reads a number from 0 to 1."""
    number = any_number(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1. Received: {text!r}.")
    return number


def number_of_processes(text):
    """Reads a whole number from 0 to MOST_PER_CORE for each core."""
    number, most = any_int(text), MOST_PER_CORE * len(os.sched_getaffinity(0))
    if not 0 <= number <= most:
        raise argparse.ArgumentTypeError(
            f"must be 0 to {most} on this machine, {MOST_PER_CORE} for each core. Received: {text}."
        )
    return number


def add_arguments(parser, output_dir="./data_dir/"):
    """Adds --output_dir, with its default, and --processes."""
    add = parser.add_argument
    add("--output_dir", default=output_dir, help="folder of the records")
    words = "worker processes; 0: one a core"
    add("--processes", type=number_of_processes, default=0, help=words)


def tell(line):
    """Prints a line about the input now, before what may fail."""
    print(line, flush=True)


def split_options(args):
    """Separates the options of `add_arguments` from a command's own.

    Args:
        args: what ``parse_args`` returned.

    Returns:
        (output_dir, number of processes, dictionary of the others).
    """
    others = dict(vars(args))
    del others["debug"]
    processes = others.pop("processes") or len(os.sched_getaffinity(0))
    return others.pop("output_dir"), max(1, processes), others


def run(prepare, inputs, output_dir, total=None, unit="B", remedy="Add input."):
    """Runs a preparation under a progress bar and prints what it made and how fast.

    Args:
        prepare: called with a function that takes the amount of input done since its last call;
            returns the manifest of pipeline.prepare.
        total: amount of input, None if it is not known beforehand.
        unit: of `total`; ``B`` is shown in MB.
        remedy: what to do if there was input and not one record was made of it, a sentence, or a
            function of the manifest's counts that returns one.

    Returns:
        The manifest.
    """
    import tqdm

    started, busy = time.monotonic(), sum(os.times()[:4])
    with tqdm.tqdm(total=total, unit=unit, unit_scale=True, disable=None) as bar:
        done = 0

        def advance(amount):
            nonlocal done
            done += amount
            bar.update(amount)

        manifest = prepare(advance)
    elapsed_s = max(time.monotonic() - started, CLOCK_TICK_S)
    # Of this process and of its workers, which have ended.
    cpu_s = max(sum(os.times()[:4]) - busy, CLOCK_TICK_S)
    counted = ", ".join(f"{count} {name}" for name, count in manifest["counts"].items())
    if not manifest["counts"]["records"]:
        if not any(manifest["counts"].values()):
            remedy = "They are empty. Add input."
        elif callable(remedy):
            remedy = remedy(manifest["counts"])
        raise DataError(
            f"{output_dir}: must get at least one record, of {records.first_names(inputs)}. "
            f"Received: {counted}. {remedy}"
        )
    scale, name = (1e6, "MB") if unit == "B" else (1, unit)
    speed = (
        f"{done / scale / elapsed_s:.1f} {name}/s, {done / scale / cpu_s:.1f} {name} a CPU second"
    )
    print(
        f"{counted} in {len(manifest['files'])} files in {output_dir} ({elapsed_s:.1f} s, "
        f"{speed if done else 'nothing left to do'})"
    )
    return manifest
