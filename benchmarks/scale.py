"""Predicts a step on 1 to 192 wafers, and measures numbers of wafers that fit on this computer.

    scripts/cerebras-tf bench scale --measure 1 2
    scripts/cerebras-tf bench scale --smoke --gbps 25 --latency_us 20 --tree 8

One wafer is measured with one thread, layer by layer; others are predicted from that and from links
of a given speed (runtime/scale.py). `--measure` also runs wafers here, each with one thread. Their
prediction starts from the times of as many independent wafers that train at the same time, because
they share memory bandwidth and cores; its links have the speed of messages between processes on
this computer, and use as much CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import html
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import command
from benchmarks.training import SIZES, SMOKE, Shape, read_params
from cerebras_tf.api import module_command, positive_int, positive_number
from cerebras_tf.errors import CerebrasError
from cerebras_tf.whole_file import require_place, write_whole

WAFERS = (1, 2, 4, 8, 16, 32, 64, 128, 192)
_LIMIT_S, _POLL_S = 3600, 0.1
# Of SwarmX nothing is published but that it is a tree: assumed.
_WAYS, _HOP_S = 8, 10e-6
_LEFT, _TOP, _WIDTH, _HEIGHT = 80.0, 16.0, 840.0, 320.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add = parser.add_argument
    add("--smoke", action="store_true", help="use a tiny shape")
    for name, text in SIZES.items():
        full, tiny = getattr(Shape, name), getattr(SMOKE, name)
        text += f" (default: {full}, with --smoke {tiny})"
        add(f"--{name}", type=positive_int, metavar="N", help=text)
    text = "numbers of wafers to predict the step for"
    add("--num_csx", type=positive_int, nargs="+", default=WAFERS, metavar="N", help=text)
    text = (
        "numbers of wafers to measure, with one thread each (default: 1, which is always measured)"
    )
    add("--measure", type=positive_int, nargs="+", default=[1], metavar="N", help=text)
    add(
        "--steps",
        type=positive_int,
        default=3,
        metavar="N",
        help="number of timed steps (default: 3)",
    )
    text = "link speed of a wafer per direction, Gbit/s (default: 100)"
    add("--gbps", type=positive_number, default=100.0, metavar="G", help=text)
    text = "latency between neighboring wafers, microseconds (default: 10)"
    add("--latency_us", type=positive_number, default=10.0, metavar="US", help=text)
    text = "fan-out of a reduction tree (default: no tree, a chain of wafers)"
    add("--tree", type=_ways, default=0, metavar="WAYS", help=text)
    add("--out", metavar="HTML", help="HTML page with a plot")
    add("--rank", nargs="+", help=argparse.SUPPRESS)  # of a child process: see scale_rank.py


def _ways(given: str) -> int:
    if not given.isdecimal() or int(given) < 2:
        raise argparse.ArgumentTypeError(f"must be a number, at least 2. Received: {given!r}.")
    return int(given)


def run(args: argparse.Namespace) -> None:
    """Measures, predicts and prints."""
    if args.rank:
        from benchmarks import scale_rank

        scale_rank.main(Path(args.rank[0]), *map(int, args.rank[1:]))
        return
    require_place(args.out, "--out")
    given = {name: value for name, value in vars(args).items() if value and hasattr(Shape, name)}
    shape = dataclasses.replace(SMOKE if args.smoke else Shape(), **given)
    read_params(shape)  # raises before anything starts
    several = sorted({n for n in args.measure if n > 1})
    link = {
        "bytes_per_s": args.gbps * 1e9 / 8,
        "latency_s": args.latency_us * 1e-6,
        "ways": args.tree,
    }
    one = on_wafers(1, shape, args.steps, [(n, link) for n in (1, *sorted(set(args.num_csx)))])
    alone, *predicted = one["predicted"]
    measured, checks = {1: one}, {}
    for wafers in several:
        measured[wafers] = on_wafers(wafers, shape, args.steps, [])
        here = [(wafers, measured[wafers]["link"])]
        (checks[wafers],) = side_by_side(wafers, shape, args.steps, here)["predicted"]
    for item in predicted:  # every wafer has a batch of its own
        item["efficiency"] = alone["step_s"] / item["step_s"]
    print(
        f"{shape.layers} layers x {shape.hidden}, sequence {shape.sequence}, batch {shape.batch} "
        f"per wafer, vocabulary {shape.vocabulary}, AdamW, float32; one thread a wafer, "
        f"{len(os.sched_getaffinity(0))} cores"
    )
    report_measured(measured, checks)
    kind = f"a tree of {args.tree} ways" if args.tree else "messages from one to the next"
    print(f"\npredicted, links of {args.gbps:g} Gbit/s, {args.latency_us:g} us, {kind}:")
    report_predicted(predicted)
    report_published(args.tree or _WAYS)
    if args.out:
        write_whole(args.out, page(predicted, measured))
        print(f"written to {args.out}")


@dataclasses.dataclass(frozen=True)
class Published:
    """A measurement of CS-2s: speed of `wafers`, as a multiple of that of `of`.

    Attributes:
        what: the model, or how it was scaled.
        of: wafers that the speed is compared with.
        wafers: wafers whose speed it is.
        measured: the multiple.
        relation: words such as `at least`, where the measurement is a bound.
    """

    what: str
    of: int
    wafers: int
    measured: float
    relation: str = ""


# The vendor's figures: hours of training at a sequence of 10,240, and scaling with the batch.
PUBLISHED = (
    Published("1.3B at 10,240 tokens", 4, 16, 10.4 / 2.7),
    Published("with the batch", 1, 16, 0.91 * 16, "at least "),
)


def report_published(ways: int) -> None:
    """Prints published scaling of CS-2s, and what links alone predict: a tree, filled twice a step.

    What happens within a wafer is the prediction of GPT-3 XL on one (cerebras_tf/wafer).
    """
    from cerebras_tf.api import load_system, predict_streaming, transformer
    from cerebras_tf.runtime.scale import Link
    from cerebras_tf.swarmx.mpi import CHUNK_BYTES

    machine = load_system()
    model = transformer("gpt3_xl", 1, 2048, 24, 16, 8192, 50257, 10240)
    step_s = predict_streaming(model, machine).step_s
    link = Link(machine.io_bytes_per_s, _HOP_S, ways)

    def seconds(wafers: int) -> float:
        return step_s + 2 * link.through_tree_s(wafers, CHUNK_BYTES) * (wafers > 1)

    print(
        f"\npublished for CS-2s; predicted by links of {machine['io_bits_per_s'] / 1e9:g} Gbit/s,"
    )
    print(f"{1e6 * _HOP_S:g} us from node to node, a tree of {ways} ways:")
    for row in PUBLISHED:
        found = row.wafers / row.of * seconds(row.of) / seconds(row.wafers)
        print(
            f"  {row.what}, {row.of} to {row.wafers}: {row.relation}{row.measured:.2f} times, "
            f"predicted {found:.2f} ({found / row.measured - 1:+.1%})"
        )


def on_wafers(wafers: int, shape: Shape, steps: int, predict: Sequence[Any]) -> dict[str, Any]:
    """Measurements of some wafers on this computer.

    Args:
        wafers: how many, a process with one thread each.
        shape: what they train.
        steps: that are timed.
        predict: (wafers, link) of steps to predict from it.

    Raises:
        CerebrasError: it failed.
    """
    with _folder_of_task(shape, steps, predict, 1) as folder:
        rank = command("scale", "--rank", folder)
        if wafers > 1:
            launch = module_command("cerebras_tf.swarmx.launch", "--wafers", f"{wafers}")
            rank = [*launch, "--logs", f"{folder}/logs", "--", *rank]
        return _found_by([rank], folder)


def side_by_side(wafers: int, shape: Shape, steps: int, predict: Sequence[Any]) -> dict[str, Any]:
    """Measurements of one of several independent wafers that train here at the same time.

    Arguments and errors are those of `on_wafers`.
    """
    with _folder_of_task(shape, steps, predict, wafers) as folder:
        ranks = [command("scale", "--rank", folder, f"{number}") for number in range(wafers)]
        return _found_by(ranks, folder)


@contextlib.contextmanager
def _folder_of_task(
    shape: Shape, steps: int, predict: Sequence[Any], together: int
) -> Iterator[str]:
    """A folder with a task.json, which describes what to measure."""
    with tempfile.TemporaryDirectory(prefix="scale") as folder:
        task = {
            "shape": dataclasses.asdict(shape),
            "steps": steps,
            "predict": predict,
            "together": together,
        }
        Path(folder, "task.json").write_text(json.dumps(task), encoding="utf-8")
        yield folder


def _found_by(ranks: Sequence[Sequence[str]], folder: str) -> dict[str, Any]:
    """Runs command lines at the same time, and reads what the first one has found."""
    threads = dict.fromkeys(("CEREBRAS_TF_THREADS", "OMP_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "SLURM_CONF": "/none"}
    with contextlib.ExitStack() as running:
        logs = [running.enter_context(tempfile.TemporaryFile("w+")) for _ in ranks]
        processes = [
            subprocess.Popen(rank, env=environment, stdout=subprocess.DEVNULL, stderr=log)
            for rank, log in zip(ranks, logs)
        ]
        for process in processes:
            running.callback(_end, process)
        end = time.monotonic() + _LIMIT_S
        while any(p.poll() is None for p in processes) and not any(p.poll() for p in processes):
            if time.monotonic() > end:
                raise CerebrasError(
                    f"scale: steps must end within {_LIMIT_S} s. Received: none of the last. Take "
                    "a smaller shape, or fewer --steps."
                )
            time.sleep(_POLL_S)
        for process, log in zip(processes, logs):
            if process.poll():
                log.seek(0)
                lines = "\n".join(log.read().splitlines()[-8:])
                raise CerebrasError(
                    f"scale: wafers must train here. Received: status {process.poll()}. The last "
                    f"lines were\n{lines}"
                )
    result: dict[str, Any] = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


def report_measured(measured: dict[int, dict[str, Any]], checks: dict[int, dict[str, Any]]) -> None:
    """Prints what was measured, and the prediction for it."""
    one = statistics.median(measured[1]["step_s"])
    print(f"\n{'measured':>8}{'s/step':>9}{'speed':>8}{'of N':>7}", end="")
    print(f"{'MB sent':>10}{'formula':>10}{'hidden':>8}{'predicted s':>13}")
    for wafers, found in sorted(measured.items()):
        step_s = statistics.median(found["step_s"])
        speed = wafers * one / step_s
        line = f"{wafers:8}{step_s:9.4f}{speed:8.2f}{speed / wafers:7.0%}"
        if wafers > 1:
            check = checks[wafers]["step_s"]
            line += f"{found['sent_bytes'] / 1e6:10.1f}{found['planned_bytes'] / 1e6:10.1f}"
            line += f"{found['hidden']:8.0%}{check:9.4f} {check / step_s - 1:+.0%}"
        print(line)


def report_predicted(predicted: Sequence[dict[str, Any]]) -> None:
    """Prints what is predicted; bytes are those of the wafer that sends most."""
    print(f"{'num_csx':>8}{'s/step':>9}{'steps/s':>9}{'of N':>7}{'MB sent':>10}{'hidden':>8}")
    for item in predicted:
        print(
            f"{item['wafers']:8}{item['step_s']:9.4f}{1 / item['step_s']:9.3f}"
            f"{item['efficiency']:7.0%}{item['sent_bytes'] / 1e6:10.1f}{item['hidden']:8.0%}"
        )


def page(predicted: Sequence[dict[str, Any]], measured: dict[int, dict[str, Any]]) -> str:
    """A page with efficiency over wafers, and the figures."""
    from cerebras_tf.api import page as html_page
    from cerebras_tf.api import pictures

    one = statistics.median(measured[1]["step_s"])
    here = {n: one / statistics.median(found["step_s"]) for n, found in measured.items()}
    last = max(*(item["wafers"] for item in predicted), *here, 2)
    most = max(*(item["efficiency"] for item in predicted), *here.values(), 1.0)

    def x(wafers: int) -> float:
        return _LEFT + _WIDTH * math.log(wafers) / math.log(last)

    def y(share: float) -> float:
        return _TOP + _HEIGHT * (1 - share / most)

    line = " ".join(f"{x(i['wafers']):.1f},{y(i['efficiency']):.1f}" for i in predicted)
    parts = [f'<polyline points="{line}" fill="none" stroke="#0b5fa5" stroke-width="2"/>']
    for wafers, share in here.items():
        centre = f'cx="{x(wafers):.1f}" cy="{y(share):.1f}"'
        label = html.escape(f"{wafers} measured here: {share:.0%}")
        parts.append(f'<circle {centre} r="5" fill="#e07a1f"><title>{label}</title></circle>')
    for item in predicted:
        shown = f"{item['wafers']}"
        parts.append(pictures.text(x(item["wafers"]), _TOP + _HEIGHT + 20, shown, "middle"))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(pictures.text(_LEFT - 8, y(share) + 4, f"{share:.0%}", "end"))
    rows = [
        [
            f"{item['wafers']}",
            f"{item['step_s']:.4f}",
            f"{1 / item['step_s']:.3f}",
            f"{item['efficiency']:.0%}",
            f"{item['sent_bytes'] / 1e6:.1f}",
            f"{item['hidden']:.0%}",
        ]
        for item in predicted
    ]
    head = ["wafers", "s a step", "steps/s", "of N", "MB sent by the busiest", "hidden"]
    note = "The line is predicted; dots were measured on this computer, whose links are its memory."
    return html_page.document(
        "Scaling over wafers",
        html_page.section(
            "Speed a wafer, as a share of that of one",
            note,
            pictures.drawing(_TOP + _HEIGHT + 30, parts, "Efficiency over wafers"),
        )
        + html_page.section("Predicted", "", html_page.table(head, rows)),
    )
