"""`cerebras-tf compare`: compile reports side by side."""

from __future__ import annotations

import argparse

from cerebras_tf.errors import ConfigError
from cerebras_tf.whole_file import require_place, write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "reports", nargs="+", metavar="REPORT", help="report.html, or a folder that contains one"
    )
    parser.add_argument("--out", metavar="HTML", help="also write the comparison as an HTML page")


def run(args: argparse.Namespace) -> None:
    """Prints the comparison."""
    from cerebras_tf.report.compare import compare_page, compare_text
    from cerebras_tf.report.record import read_record

    if len(args.reports) < 2:
        raise ConfigError(
            f"compare: at least two reports must be given. Received: {args.reports[0]}. Add "
            "another."
        )
    require_place(args.out, "--out")
    records = [read_record(path) for path in args.reports]
    print(compare_text(records))
    if args.out is not None:
        write_whole(args.out, compare_page(records))
        print(f"written to {args.out}")
