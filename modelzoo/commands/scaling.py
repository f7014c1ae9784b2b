"""`cerebras-tf scaling fit` and `plan`: the law of some runs, and what a budget buys."""

from __future__ import annotations

import argparse
from pathlib import Path

from cerebras_tf.cli.arguments import positive_int
from modelzoo.common.scaling.law import PUBLISHED, Law

_SHARE = 0.9


def add_arguments(parser, what):
    """Adds the arguments of `what`: ``fit`` or ``plan``."""
    parser.set_defaults(what=what)
    if what == "fit":
        parser.add_argument("runs", nargs="+", metavar="RUN", help="model_dir of a run")
        parser.add_argument("--out", metavar="HTML", help="page with a picture")
        parser.add_argument(
            "--at", type=float, metavar="FLOPS", help="also predict the loss of this compute"
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
    parser.add_argument("--machine", default="cs2", help="of configs/wafer (default: cs2)")
    parser.add_argument("--release", help="of the machine's software")
    parser.add_argument(
        "--law",
        type=float,
        nargs=3,
        metavar=("A", "B", "C"),
        help="constants of (f / A)^-B + C (default: those published for the Pile)",
    )


def _budget(given):
    """{"flops": number} or {"days": number}."""
    text = given.removesuffix("days").removesuffix("day")
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number of FLOPs, or of days as in 10days. Received: {given!r}."
        ) from None
    return {"flops" if text == given else "days": value}


def run(args):
    """Fits or plans."""
    if args.what == "plan":
        from modelzoo.common.scaling.plan import make_plan

        law = PUBLISHED if args.law is None else Law(*args.law)
        plan = make_plan(
            **args.budget, num_csx=args.num_csx, law=law, machine=args.machine, release=args.release
        )
        print(plan)
        return
    fit(args)


def fit(args):
    """Prints the law of the runs, and writes its page."""
    from modelzoo.common.scaling.law import fit_law, interval
    from modelzoo.common.scaling.picture import law_page
    from modelzoo.common.scaling.runs import read_run

    runs = sorted((read_run(path) for path in args.runs), key=lambda run: run.flops)
    flops, losses = [run.flops for run in runs], [run.loss for run in runs]
    law = fit_law(flops, losses)
    for run in runs:
        share = law.loss(run.flops) / run.loss - 1
        print(f"{run.name}: {run.flops:.4g} FLOP, loss {run.loss:.4f}, the law {share:+.2%}")
    print(law)
    if args.at is not None:
        least, most = interval(flops, losses, args.at, _SHARE)
        told = f"{law.loss(args.at):.4f}, {_SHARE:.0%} of refits from {least:.4f} to {most:.4f}"
        print(f"at {args.at:.4g} FLOP: {told}")
    if args.out is not None:
        Path(args.out).write_text(law_page(runs, law, _SHARE), encoding="utf-8")
        print(f"written to {args.out}")
