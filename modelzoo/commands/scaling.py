"""`cerebras-tf scaling`: the law of some runs, what a budget buys, and a family to fit a law to."""

import argparse
import math
import subprocess
import time
from pathlib import Path

from cerebras_tf.api import any_number, module_command, positive_int, positive_number
from cerebras_tf.errors import CerebrasError, ConfigError
from cerebras_tf.whole_file import require_place, write_whole
from modelzoo.commands.configs import config_path
from modelzoo.common.scaling.law import PUBLISHED, Law
from modelzoo.common.train.console import quiet_logging

_SHARE = 0.9


def add_arguments(parser, what):
    """Adds the arguments of `what`: ``family``, ``fit`` or ``plan``."""
    parser.set_defaults(what=what)
    if what == "family":
        folder = "folder for params files, runs and the HTML page (default: model_dir/family)"
        parser.add_argument("--folder", type=Path, default=Path("model_dir", "family"), help=folder)
        return
    if what == "fit":
        parser.add_argument("runs", nargs="+", metavar="RUN", help="model_dir of a run")
        parser.add_argument("--out", metavar="HTML", help="page with a picture")
        parser.add_argument(
            "--at", type=positive_number, metavar="FLOPS", help="also predict the loss of it"
        )
        return
    parser.add_argument(
        "--budget",
        type=_budget,
        required=True,
        metavar="FLOPS|DAYS",
        help="such as 1e20, or 10days",
    )
    parser.add_argument("--num_csx", type=positive_int, default=1, metavar="N", help="wafers")
    parser.add_argument(
        "--machine", default="cs2", help="system description in configs/wafer (default: cs2)"
    )
    parser.add_argument("--release", help="software release of the system")
    parser.add_argument(
        "--law",
        type=_constant,
        nargs=3,
        metavar=("A", "B", "C"),
        help="constants of (f / A)^-B + C (default: those published for the Pile)",
    )


def _constant(given):
    """A number of a law, at least 0: C of a fit may be 0."""
    value = any_number(given)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0. Received: {given!r}.")
    return value


def _budget(given):
    """{"flops": number} or {"days": number}."""
    text = given.removesuffix("days" if given.endswith("days") else "day")
    try:
        value = positive_number(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"must be a number of FLOPs above 0, or of days as in 10days. Received: {given!r}."
        ) from None
    return {"flops" if text == given else "days": value}


def run(args):
    """Trains, fits or plans."""
    if args.what == "family":
        train_family(args.folder)
    elif args.what == "plan":
        from modelzoo.common.scaling.plan import make_plan

        law = PUBLISHED if args.law is None else Law(*args.law)
        if not law.a * law.b:
            raise ConfigError(
                f"scaling plan --law: A and B must be above 0. Received: {args.law}. Use the "
                "numbers that scaling fit prints."
            )
        plan = make_plan(
            **args.budget, num_csx=args.num_csx, law=law, machine=args.machine, release=args.release
        )
        print(plan)
    else:
        fit(args.runs, args.at, args.out)


def train_family(folder):
    """Trains a family of small models, a process each, and fits their law.

    A model that was trained before is evaluated again, and one that was stopped continues.
    """
    from modelzoo.common.scaling.family import SIZES, write_params

    started = time.monotonic()
    for size in SIZES:
        params = write_params(size, config_path("gpt3_tiny"), folder)
        command = ["-m", "train_and_eval", "-p", str(params), "-o", str(folder / size.name)]
        code = subprocess.run(module_command("modelzoo.common.train.run", *command)).returncode
        if code:
            raise CerebrasError(
                f"scaling family: training of {params} must succeed. Received: exit code {code}. "
                "Its message is above; the same command continues where it stopped."
            )
    print(f"trained the family: {time.monotonic() - started:.0f} s")
    fit([folder / size.name for size in SIZES], None, folder / "law.html")


def fit(runs, at, out):
    """Prints the law of runs, and writes its page."""
    from modelzoo.common.scaling.runs import read_run, require_run

    require_place(out, "--out")
    for folder in runs:
        require_run(folder)
    import tensorflow.compat.v1 as tf

    from modelzoo.common.scaling.band import NO_BAND, interval
    from modelzoo.common.scaling.law import fit_law
    from modelzoo.common.scaling.picture import law_page

    quiet_logging(tf)
    runs = sorted((read_run(path) for path in runs), key=lambda run: run.flops)
    flops, losses = [run.flops for run in runs], [run.loss for run in runs]
    law = fit_law(flops, losses)
    for run in runs:
        share = law.loss(run.flops) / run.loss - 1
        loss = f"{run.kind} loss {run.loss:.4f}"
        print(f"{run.name}: {run.flops:.4g} FLOP, {loss}, the law {share:+.2%}")
    if len({run.kind for run in runs}) > 1:
        print(
            "some losses are from evaluation and some from training: evaluate all runs on the "
            "same data"
        )
    print(law)
    if at is not None:
        band = interval(flops, losses, at, _SHARE)
        told = (
            f"{band[0]:.4f} to {band[1]:.4f} with a confidence of {_SHARE:.0%}" if band else NO_BAND
        )
        print(f"at {at:.4g} FLOP: {law.loss(at):.4f}, {told}")
    if out is not None:
        write_whole(out, law_page(runs, law, _SHARE))
        print(f"written to {out}")
